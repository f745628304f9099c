# A hard reset in the midst of writing: what was acknowledged as flushed, or as written with FUA, is in the image afterwards.
. /host/lib.sh
modprobe -a virtio_blk ext4
mkdir -p /disks
if [ -e /host/reset ]; then
	must "the file system mounts after the reset" mount -t ext4 /dev/vda /disks
	for transport in iser tcp; do
		check "$transport: each acknowledged write is in the image" peer verify /disks/$transport.img /host/acks-$transport
		cat /tmp/check.out
	done
	umount /disks
	finish
fi
siw_up
must "a file system for the images" sh -c "mkfs.ext4 -q -F /dev/vda && mount -t ext4 /dev/vda /disks"
initiator_up
acked() { [ $(wc -l </host/acks-$1) -ge $2 ]; }
iserd_up --lun /disks/iser.img,size=64MiB --lun /disks/tcp.img,size=64MiB
check "mkfs reached the disk" sync
capture_start "" "tcp port $PORT"
node iser >/dev/null
must "iser login" login
disk=$(disk 0) || finish
iscsiadm -m node -T $IQN -p $IP:$PORT,1 -I default -o new >/dev/null
must "tcp login" timeout 90 iscsiadm -m node -T $IQN -p $IP:$PORT,1 -I default --login
sessions() { [ $(ls -d /sys/class/iscsi_session/session* | wc -l) = 2 ] && [ $(ls -d /sys/block/sd* | wc -l) = 4 ]; }
await 60 "both sessions' disks" sessions || finish
other=$(ls -d /sys/class/iscsi_session/session*/device/target*/*:*:*:1/block/sd* | sed 's:.*/::' | tail -1)
peer write $disk /host/acks-iser 1000000 >/tmp/writer-iser.log 2>&1 &
peer write /dev/$other /host/acks-tcp 1000000 >/tmp/writer-tcp.log 2>&1 &
await 120 "acknowledged writes over iSER" acked iser 300 || finish
await 120 "acknowledged writes over TCP" acked tcp 300 || finish
pass "resetting in mid-write, $(wc -l </host/acks-iser) and $(wc -l </host/acks-tcp) writes acknowledged"
: >/host/reset
echo b >/proc/sysrq-trigger
sleep 60
fail "the guest did not reset"
finish
