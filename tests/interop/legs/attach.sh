# iser attach: a disk of iserd over iSER (iWARP in software on both sides) as the block device /dev/nbdN, under file systems that see nothing
# of what happens below: connections cut, iserd and the tool killed (-9), a path removed, memory that is short.
. /host/lib.sh
CRC= # no siw here
ip addr add $IP/24 dev lo
ip addr add 10.9.0.2/24 dev lo
modprobe -a tcp_diag inet_diag xfs ext4
mkdir -p /disks /mnt
span=15s loops=1
[ $FULL = 1 ] && span=120s loops=4
url=iser://$IP:$PORT/$IQN

# Later kernels load the driver when it is asked for.
if grep -q 'family-nbd nbd' /lib/modules/*/modules.alias; then
	check "iser attach has the kernel load the driver" sh -c "! iser attach $url/0 2>/tmp/no && grep '^nbd ' /proc/modules && grep -i refused /tmp/no"
else
	check "iser attach without the driver says what to do" sh -c "! iser attach $url/0 2>/tmp/no && grep 'modprobe nbd' /tmp/no"
fi
must "the nbd driver" modprobe nbd nbds_max=4

lun() { echo "--lun /disks/a.img${1:+,size=$1} --lun null:4GiB --listen 10.9.0.2:$PORT"; }
iserd_up $(lun 320MiB)

# attach_up URL ARGS...: the tool, in the background.
attach_up() {
	: >/tmp/attach.ready
	iser attach --log-level info --io-timeout 20s --size-check 2s "$@" >/tmp/attach.ready 2>>/tmp/attach.log &
	ATTACH=$!
	await 60 "iser attach" grep -q '^ready' /tmp/attach.ready || finish
	dev=$(sed -n 's/^ready: .* on //p' /tmp/attach.ready)
}
attach_ended() { ! kill -0 $ATTACH 2>/dev/null; }
cut() { ss -K -t dport = :$PORT >/dev/null 2>&1; }
disturbed() { # disturbed SECONDS COMMAND: COMMAND, with all connections cut every SECONDS
	local every=$1 pid
	shift
	"$@" &
	pid=$!
	while kill -0 $pid 2>/dev/null; do
		sleep $every
		cut
		echo cut >>/tmp/cuts
	done
	wait $pid
}
fsx() { peer fsx /mnt/fsx $span $1 >>/tmp/fsx.log 2>&1; }
tree() { # tree DIR: files of many sizes, and their checksums
	mkdir -p $1
	for i in $(seq 40); do head -c $((i * i * 331)) /dev/urandom >$1/$i; done
	(cd $1 && sha256sum [0-9]*) >$1.sums
	sync
}
tree_holds() { (cd $1 && sha256sum -c --status $1.sums); }

attach_up --persist $url/0
n=${dev#/dev/nbd}
check "the device has the disk's size and blocks" [ "$(blockdev --getsize64 $dev) $(blockdev --getss $dev)" = "$((320 << 20)) 512" ]
check "every thread is an I/O flusher" sh -c "! awk '{ sub(/.*\\) /, \"\"); print int(\$7 / 524288) % 2 }' /proc/$ATTACH/task/*/stat | grep -q 0"
check "memory is locked" awk '/VmLck/ { exit !($2 > 40000) }' /proc/$ATTACH/status
note "iser attach: $(awk '/VmLck|VmRSS/ { printf "%s %s kB ", $1, $2 }' /proc/$ATTACH/status)"
check "it is not chosen when memory runs out" [ "$(cat /proc/$ATTACH/oom_score_adj)" = -1000 ]
check "iser attached lists it" sh -c "iser attached | grep -q '$dev .*320 MiB .*served by $ATTACH .*$url/0'"
check "a second iser attach of the disk is refused" sh -c "! iser attach $url/0 2>/tmp/no && grep -q 'attached already, as $dev' /tmp/no"
warnings >/dev/null

make_fs() { if [ $1 = ext4 ]; then mkfs.ext4 -q -F $dev; else mkfs.xfs -q -f $dev; fi; }
sound() { if [ $1 = ext4 ]; then e2fsck -fn $dev; else xfs_repair -n $dev; fi; }

for fs in ext4 xfs; do
	must "mkfs.$fs" make_fs $fs
	must "$fs: mount" mount -t $fs $dev /mnt
	tree /mnt/tree
	check "$fs: a random changer finds what it wrote" fsx 1
	check "$fs: fio verifies mixed sizes" fio_round /mnt/fio
	check "$fs: fstrim" fstrim /mnt
	check "$fs: unmount" umount /mnt
	check "$fs: mounted again" mount -t $fs $dev /mnt
	check "$fs: checksums hold" tree_holds /mnt/tree
	: >/tmp/cuts
	check "$fs: a random changer while connections are cut" disturbed 4 fsx 2
	check "$fs: fio verifies mixed sizes while connections are cut" disturbed 4 fio_round /mnt/fio --loops=$loops
	note "$fs: connections cut $(wc -l </tmp/cuts) times"
	sed -n '$s/^/NOTE '$fs': /p' /tmp/fsx.log >>/host/results
	check "$fs: checksums hold after the cuts" tree_holds /mnt/tree
	check "$fs: iser detach leaves a mounted device alone" sh -c "! iser detach $dev 2>/tmp/no && grep -q 'mounted on /mnt' /tmp/no"
	umount /mnt
	check "$fs: sound" sound $fs
done

# iserd killed, then the tool itself, under a mounted file system.
for fs in xfs ext4; do
	make_fs $fs && mount $dev /mnt
	tree /mnt/tree
	fsx 3 &
	changer=$!
	for kill in 1 2; do
		sleep 3
		kill -9 $ISERD
		wait $ISERD 2>/dev/null
		iserd_up $(lun)
	done
	wait $changer
	check "$fs: iserd killed twice: the random changer sees nothing" [ $? = 0 ]
	fsx 4 &
	changer=$!
	sleep 3
	kill -9 $ATTACH
	wait $ATTACH 2>/dev/null
	check "$fs: iser attached says that the device waits" sh -c "iser attached | grep -q '$dev .*waiting'"
	attach_up --persist $url/0
	check "$fs: the restarted tool takes over the same device" [ $dev = /dev/nbd$n ]
	sleep 3
	kill $ATTACH
	wait $ATTACH
	check "$fs: a tool that is told to stop leaves the device, with status 0" [ $? = 0 ]
	attach_up --persist $url/0
	wait $changer
	check "$fs: the tool killed and restarted: the random changer sees nothing" [ $? = 0 ]
	check "$fs: checksums hold" tree_holds /mnt/tree
	[ $fs = ext4 ] && continue # it grows
	umount /mnt
	check "$fs: sound after kills" sound $fs
done

# Growth, live.
truncate -s +32M /disks/a.img
kill -HUP $ISERD
larger() { [ "$(blockdev --getsize64 $dev)" = $((352 << 20)) ]; }
await 60 "the device to grow" larger && pass "the device grows with the disk"
check "the file system grows" resize2fs $dev
umount /mnt
check "ext4: sound after it all" sound ext4
check "detach by URL" iser detach $url/0
await 10 "the tool to end" attach_ended
wait $ATTACH
check "the tool ends with status 0 when its device is detached" [ $? = 0 ]
check "nothing is attached" sh -c "[ \$(iser attached | wc -l) = 1 ]"

# One of two paths is removed, and the tool polls.
for fs in ext4 xfs; do
	ip addr add 10.9.0.2/24 dev lo 2>/dev/null
	attach_up --poll 20ms --path iser://10.9.0.2:$PORT/$IQN/0 $url/0
	make_fs $fs && mount $dev /mnt
	tree /mnt/tree
	fsx 5 &
	changer=$!
	sleep 3
	ip addr del 10.9.0.2/24 dev lo
	ss -K -t dst 10.9.0.2 >/dev/null 2>&1
	wait $changer
	check "$fs: a path removed: the random changer sees nothing" [ $? = 0 ]
	check "$fs: checksums hold on one path" tree_holds /mnt/tree
	umount /mnt
	check "$fs: sound after it" sound $fs
	kill $ATTACH
	wait $ATTACH
	check "$fs: without --persist the device goes with the tool, with status 0" [ $? = 0 ]
	check "$fs: and is gone" sh -c "[ \$(iser attached | wc -l) = 1 ]"
done

# Dirty pages beyond the memory that is free.
ip addr add 10.9.0.2/24 dev lo
attach_up $url/1
sysctl -q vm.dirty_background_ratio=60 vm.dirty_ratio=80
free=$(awk '/MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
check "more dirty pages than free memory ($free MiB) are written" timeout 300 sh -c "dd if=/dev/zero of=$dev bs=1M count=$((free + 128)) conv=fsync 2>/tmp/dd"
note "dirty pages: $(tail -1 /tmp/dd)"
check "detach after it" iser detach $dev
wait $ATTACH
dmesg | grep -E 'I/O error|Buffer I/O|EXT4-fs (error|warning)|XFS.*(error|Corruption|shut)|blocked for more|Call Trace|oom-kill' >/tmp/kernel.warnings
cat /tmp/kernel.warnings
check "the kernel has seen no I/O error and no task that hangs" sh -c '! [ -s /tmp/kernel.warnings ]'
iserd_down
finish
