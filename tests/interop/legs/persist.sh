# Persistent reservations of two initiators with names of their own, by sg_persist: over iSER, and one of each transport.
. /host/lib.sh
siw_up
initiator_up
mkdir -p /disks
iserd_up --lun /disks/a.img,size=16MiB

# initiator NAME TRANSPORT: an initiator with a name of its own logs in; its disk is at /dev/by-NAME.
initiator() {
	iscsiadm -m iface -I $1 -o delete >/dev/null 2>&1
	iscsiadm -m iface -I $1 -o new && iscsiadm -m iface -I $1 -o update -n iface.transport_name -v $2 &&
		iscsiadm -m iface -I $1 -o update -n iface.initiatorname -v iqn.2026-11.com.example:$1 &&
		iscsiadm -m node -T $IQN -p $IP:$PORT,1 -I $1 -o new && timeout 90 iscsiadm -m node -T $IQN -p $IP:$PORT,1 -I $1 --login || return 1
	await 60 "the disk of $1" disk_of $1 && ln -sf $(disk_of $1) /dev/by-$1
}
disk_of() {
	local s d
	for s in /sys/class/iscsi_session/session*; do
		[ "$(cat $s/ifacename)" = $1 ] || continue
		d=$(ls -d $s/device/target*/*:*:*:0/block/sd* | sed 's:.*/::') && [ -b /dev/$d ] && [ "$(cat /sys/block/$d/size)" -gt 0 ] && echo /dev/$d && return 0
	done
	return 1
}
out() { sg_persist --out --no-inquiry "$@"; }
in_() { sg_persist --in --no-inquiry "$@"; }
write() { dd if=/dev/zero of=/dev/by-$1 bs=4k count=4 oflag=direct conv=notrunc; }
read_() { dd if=/dev/by-$1 of=/dev/null bs=4k count=4 iflag=direct; }
# A conflict is sg_persist's status 24, and EBADE for the kernel's users.
conflict() { "$@"; [ $? = 24 ]; }
not() { ! "$@"; }
# holder KEY [INITIATOR who asks]: who was preempted hears of that first, as a unit attention.
holder() { in_ --read-reservation /dev/by-${2:-a} | tee /tmp/holder; [ "$1" = none ] && grep 'NO reservation' /tmp/holder || grep -i "Key=0x$1" /tmp/holder; }

round() { # of a's transport and b's
	local t="a over $1, b over $2"
	must "$t: two initiators log in" eval "initiator a $1 && initiator b $2"
	check "$t: both register" eval "out --register --param-sark=a1 /dev/by-a && out --register --param-sark=b2 /dev/by-b"
	check "$t: both keys are there" sh -c "sg_persist --in --no-inquiry --read-keys /dev/by-b | grep -c -e 0xa1 -e 0xb2 | grep 2"
	check "$t: the full status names both initiators" sh -c "sg_persist --in --no-inquiry --read-full-status /dev/by-a >/tmp/full; grep iqn.2026-11.com.example:a /tmp/full && grep iqn.2026-11.com.example:b /tmp/full"
	check "$t: a reserves (write exclusive)" out --reserve --param-rk=a1 --prout-type=1 /dev/by-a
	check "$t: a is the holder" holder a1
	check "$t: b cannot reserve" conflict out --reserve --param-rk=b2 --prout-type=1 /dev/by-b
	check "$t: a writes" write a
	check "$t: b does not" not write b
	check "$t: b reads" read_ b
	check "$t: b preempts a, exclusive access" out --preempt --param-rk=b2 --param-sark=a1 --prout-type=3 /dev/by-b
	check "$t: b is the holder" holder b2 b
	check "$t: b writes" write b
	check "$t: a neither writes nor reads" not eval "write a || read_ a"
	check "$t: a cannot release what it has not" conflict out --release --param-rk=a1 --prout-type=3 /dev/by-a
	check "$t: a registers again, b changes to registrants only" eval "out --register-ignore --param-sark=a3 /dev/by-a && out --release --param-rk=b2 --prout-type=3 /dev/by-b && out --reserve --param-rk=b2 --prout-type=5 /dev/by-b"
	check "$t: both write" eval "write a && write b"
	check "$t: a preempts and aborts" out --preempt-abort --param-rk=a3 --param-sark=b2 --prout-type=5 /dev/by-a
	check "$t: a is the holder again" holder a3
	check "$t: a clears all" out --clear --param-rk=a3 /dev/by-a
	check "$t: nobody holds it" holder none
	check "$t: both write" eval "write a && write b"
}
gone() {
	timeout 90 iscsiadm -m node -T $IQN --logout >/dev/null
	await 60 "the disks to go" no_disks
	iscsiadm -m node -o delete >/dev/null
}
capture_start iser "tcp port $PORT"
round iser iser
capture_stop
gone
round iser tcp
# What was asked to outlive a loss of power outlives a target that is killed.
check "a registers for good, and reserves" eval "out --register --param-sark=a1 --param-aptpl /dev/by-a && out --reserve --param-rk=a1 --prout-type=1 /dev/by-a"
kill -9 $ISERD
wait $ISERD 2>/dev/null
iserd_up --lun /disks/a.img
reads() { read_ a && read_ b; }
await 120 "both sessions to come back" reads
check "the reservation is still a's" holder a1
check "b does not write" not write b
check "a writes" write a
check "a clears" out --clear --param-rk=a1 /dev/by-a
gone
iserd_down
finish
