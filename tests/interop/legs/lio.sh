# iser, our initiator, to LIO: ib_isert over siw, and LIO over TCP.
. /host/lib.sh
siw_up
lio_up
lio_target $IQN $IP:3260 iser
lio_target $IQN-tcp $IP:3261 tcp
lio_target $IQN-ro $IP:3262 tcp 1
dd if=/dev/urandom of=/tmp/in bs=1M count=64 2>/dev/null

session() { # NAME URL CAPTURE
	local size
	check "$1: ls" sh -c "iser $CRC ls $2 | tee /tmp/ls; grep -i '64 MiB' /tmp/ls"
	check "$1: info" sh -c "iser $CRC info $2/0 | tee /tmp/info-$3; grep 'LIO-ORG' /tmp/info-$3"
	cat /tmp/info-$3
	check "$1: 64 MiB written, read back and compared" iser $CRC cp --verify /tmp/in $2/0
}
capture_start iser "tcp port 3260"
check "iser: discover" sh -c "iser $CRC discover --iser $IP:3260 | grep '$IP:3260,1 $IQN\$'"
check "iser: small reads and writes" sh -c "head -c 5000 /tmp/in | iser $CRC write iser://$IP:3260/$IQN/0 --offset 1MiB && iser $CRC read iser://$IP:3260/$IQN/0 --offset 1MiB --length 5000 | cmp -n 5000 - /tmp/in"
check "iser: Send with Invalidate refused, 1 MiB written and read back" peer -crc=$PEERCRC no-invalidate iser://$IP:3260/$IQN/0
cat /tmp/check.out
check "iser: Send with Invalidate agreed, 1 MiB written and read back" peer -crc=$PEERCRC invalidate iser://$IP:3260/$IQN/0
cat /tmp/check.out
capture_stop
session iser iser://$IP:3260/$IQN iser
check "iser: the kernel has nothing to complain of" warnings

capture_start tcp "tcp port 3261"
check "tcp: discover" sh -c "iser discover $IP:3261 | grep '$IP:3261,1 $IQN-tcp'"
check "tcp: small reads and writes" sh -c "head -c 5000 /tmp/in | iser write iscsi://$IP:3261/$IQN-tcp/0 --offset 1MiB && iser read iscsi://$IP:3261/$IQN-tcp/0 --offset 1MiB --length 5000 | cmp -n 5000 - /tmp/in"
capture_stop
session tcp iscsi://$IP:3261/$IQN-tcp tcp
check "tcp: the kernel has nothing to complain of" warnings
check "tcp: digests on" sh -c "head -c 100000 /tmp/in | iser --digests write iscsi://$IP:3261/$IQN-tcp/0 && iser --digests read iscsi://$IP:3261/$IQN-tcp/0 --length 100000 | cmp -n 100000 - /tmp/in"

# CHECK CONDITION: what LIO says of a write that it does not allow, and of blocks that are not there.
for t in "iser://$IP:3260/$IQN" "iscsi://$IP:3261/$IQN-tcp"; do
	check "${t%%:*}: sense data is told in words" sh -c "! peer -crc=$PEERCRC beyond $t/0 2>/tmp/beyond; cat /tmp/beyond; [ \$(wc -l </tmp/beyond) = 1 ] && grep -i 'illegal request' /tmp/beyond"
	cat /tmp/check.out
done
check "tcp: a write-protected LUN is told in words" sh -c "! head -c 512 /tmp/in | iser write iscsi://$IP:3262/$IQN-ro/0 2>/tmp/ro; cat /tmp/ro; [ \$(wc -l </tmp/ro) = 1 ] && grep -i 'protect' /tmp/ro"
cat /tmp/check.out
finish
