# The kernel's initiator (open-iscsi; ib_iser over siw, and iscsi_tcp) to iserd: both transports on the same port.
. /host/lib.sh
siw_up
mkdir -p /disks
iserd_up --lun /disks/a.img,size=64MiB --lun mem:32MiB,block=4096
initiator_up
dd if=/dev/urandom of=/tmp/random bs=1M count=8 2>/dev/null

# io DEVICE KIB N MIB: N direct writes, and reads, of so many KiB each, from an offset on.
io() {
	local n=$3 skip=$(($4 * 1024 / $2))
	dd if=/tmp/random of=$1 bs=${2}k count=$n seek=$skip oflag=direct conv=notrunc 2>/tmp/dd.out || { cat /tmp/dd.out; return 1; }
	dd if=$1 bs=${2}k count=$n skip=$skip iflag=direct 2>/dev/null | cmp -n $(($3 * $2 << 10)) - /tmp/random
}
parallel() { # four writers at once, each with its quarter of the disk, then all is read back
	local p= i
	for i in 0 1 2 3; do
		dd if=/tmp/random of=$1 bs=128k count=16 seek=$((i * 64)) oflag=direct conv=notrunc 2>/dev/null &
		p="$p $!"
	done
	for i in $p; do wait $i || return 1; done
	for i in 0 1 2 3; do dd if=$1 bs=128k count=16 skip=$((i * 64)) iflag=direct 2>/dev/null | cmp -n 2097152 - /tmp/random || return 1; done
}
zeros() { cmp -n $(($2 << 20)) $1 /dev/zero; }
views() { # what SCSI tools see: $1 is the disk, $2 where to keep it
	local s=/sys/block/${1#/dev/}
	mkdir -p $2
	for p in sv sn di bl bdc lbpv; do sg_vpd -p $p $1 >$2/vpd-$p || return 1; done
	cat $s/device/wwid >$2/wwid || return 1
	lsscsi $(basename $(readlink -f $s/device)) | awk '{ $1 = ""; sub("/dev/[^ ]*", "DISK"); print }' >$2/lsscsi && [ -s $2/lsscsi ] || return 1
	sg_inq $1 >$2/inq && sg_readcap --16 $1 >$2/readcap && sg_opcodes $1 >$2/opcodes 2>&1 && sg_luns $1 >$2/luns && sg_turs $1 && sg_modes -a $1 >$2/modes
}
write_tree() {
	mkfs.ext4 -q -F $1 && mount -t ext4 $1 /mnt && mkdir /mnt/tree && cp -r /usr/bin/[a-f]* /etc /mnt/tree/ &&
		(cd /mnt && find tree -type f | sort | xargs sha256sum >/tmp/tree.sums) && cp /tmp/tree.sums /mnt/ && umount /mnt
}
read_tree() { mount -t ext4 -o ro $1 /mnt && (cd /mnt && sha256sum --quiet -c tree.sums && cmp tree.sums /tmp/tree.sums) && umount /mnt; }
logout_clean() {
	check "$1 logout" logout
	await 60 "the disks to go" no_disks
	check "$1: the kernel has nothing to complain of" warnings
}

for transport in iser tcp; do
	iface=$transport
	[ $transport = tcp ] && iface=default
	capture_start $transport "tcp port $PORT"
	check "$transport discovery" sh -c "iscsiadm -m discovery -t st -p $IP:$PORT -I $iface | grep '$IP:$PORT,1 $IQN'"
	node $iface >/dev/null
	must "$transport login" login
	disk=$(disk 0) || finish
	check "$transport: lsscsi shows the target and the disk" sh -c "lsscsi -t | grep '$IQN' && lsscsi | grep $disk"
	check "$transport: sg_inq, sg_vpd, sg_readcap, sg_opcodes, sg_luns, sg_modes" views $disk /tmp/views-$transport
	check "$transport: the kernel and READ CAPACITY agree" sh -c "[ \$((\$(cat /sys/block/${disk#/dev/}/size) * 512)) = \$(stat -c %s /disks/a.img) ] && grep \"Device size: \$(stat -c %s /disks/a.img) bytes\" /tmp/views-$transport/readcap"
	check "$transport: 512 KiB I/Os" io $disk 512 8 0
	check "$transport: 4 KiB I/Os" io $disk 4 64 8
	capture_stop
	check "$transport: four parallel writers" parallel $disk
	disk4k=$(disk 1) && check "$transport: the LUN of 4096-octet blocks" io $disk4k 64 32 3
	[ $FULL = 1 ] && check "$transport: the same tools on it" views $disk4k /tmp/views4k-$transport
	check "$transport: mkfs.ext4 and a tree of files" write_tree $disk
	check "$transport: fsck finds the file system clean" e2fsck -fn $disk
	logout_clean $transport

	# Unsolicited data: how much of a write comes without being asked for.
	for mode in "Yes No" "No No" "Yes Yes"; do
		set -- $mode
		set_node node.session.iscsi.InitialR2T $1
		set_node node.session.iscsi.ImmediateData $2
		[ "$mode" = "No No" ] && capture_start $transport-unsolicited "tcp port $PORT"
		must "$transport login with InitialR2T=$1, ImmediateData=$2" login
		disk=$(disk 0) || finish
		check "$transport: the session has InitialR2T=$1, ImmediateData=$2" sh -c \
			"iscsiadm -m session -P 2 >/tmp/p2; grep 'InitialR2T: $1' /tmp/p2 && grep 'ImmediateData: $2' /tmp/p2"
		[ "$mode" = "Yes No" ] && check "$transport: the tree's checksums after login" read_tree $disk
		for bs in 4 64 512; do
			check "$transport: $bs KiB with InitialR2T=$1, ImmediateData=$2" io $disk $bs $((bs > 4 ? 8 : 32)) 40
		done
		capture_stop
		if [ "$mode" = "Yes Yes" ]; then
			# The disk grows while it is in use.
			truncate -s +16M /disks/a.img
			kill -HUP $ISERD
			check "$transport: rescan" iscsiadm -m session --rescan
			grown() { [ $(($(cat /sys/block/${disk#/dev/}/size) * 512)) = $(stat -c %s /disks/a.img) ]; }
			await 30 "the kernel to see the LUN grown" grown && pass "$transport: LUN grown and rescanned"
			check "$transport: I/O behind the old end" io $disk 256 16 $(($(stat -c %s /disks/a.img) / 1048576 - 8))
			check "$transport: blkdiscard" blkdiscard -f $disk
			check "$transport: what was discarded reads zeros" zeros $disk 64
			check "$transport: the discarded file takes no space" sh -c "[ \$(du -m /disks/a.img | cut -f1) -lt 8 ]"
		fi
		logout_clean "$transport"
	done
done
for v in vpd-sv vpd-sn vpd-di vpd-bl vpd-bdc vpd-lbpv wwid lsscsi inq opcodes luns; do
	check "both transports show the same: $v" cmp /tmp/views-iser/$v /tmp/views-tcp/$v
done
for v in readcap modes vpd-di; do # of a LUN that has not grown meanwhile
	[ $FULL = 1 ] && check "both transports show the same of LUN 1: $v" cmp /tmp/views4k-iser/$v /tmp/views4k-tcp/$v
done
iserd_down
finish
