# iser, our initiator, to LIO: ib_isert over siw, and LIO over TCP.
. /host/lib.sh
siw_up
lio_up
lio_target $IQN $IP:3260 iser
lio_target $IQN-tcp $IP:3261 tcp
lio_target $IQN-ro $IP:3262 tcp 1
dd if=/dev/urandom of=/tmp/in bs=1M count=64 2>/dev/null
head -c 16M /tmp/in >/tmp/large
head -c 4M /tmp/in >/tmp/small

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

# CHAP, one way and both, over both transports.
lio_target $IQN-chap $IP:3263 iser
lio_target $IQN-chap-tcp $IP:3264 tcp
secret() { (umask 077 && echo $2 >/tmp/$1); }
secret right alice-secret-16
secret wrong not-this-secret1
secret proof portal-secret16
lio_chap() { # TARGET USER SECRET [SUFFIX]: whom it lets in; with the suffix _mutual how it proves itself
	printf %s $2 >$LIO/iscsi/$1/tpgt_1/auth/userid$4
	printf %s $3 >$LIO/iscsi/$1/tpgt_1/auth/password$4
}
chap() { iser $CRC ls $1 --chap-user alice --chap-secret-file /tmp/$2 ${3:+--mutual-user portal --mutual-secret-file /tmp/$3}; }
# refused URL SECRET...: the target says no, in one line.
refused() { ! chap "$@" 2>/tmp/refused && cat /tmp/refused && [ $(wc -l </tmp/refused) = 1 ] && grep -i -E "$wanted" /tmp/refused; }
anonymous() { ! iser $CRC ls $1 2>/tmp/refused && cat /tmp/refused && [ $(wc -l </tmp/refused) = 1 ]; }
for url in iser://$IP:3263/$IQN-chap iscsi://$IP:3264/$IQN-chap-tcp; do
	as="${url%%:*}: CHAP"
	name=${url##*/}
	echo 1 >$LIO/iscsi/$name/tpgt_1/attrib/authentication
	lio_chap $name alice alice-secret-16
	check "$as: the right secret" chap $url right
	wanted='authentication|0201'
	[ ${url%%:*} = iscsi ] || wanted="$wanted|closed by the target" # LIO may disconnect before its answer has left
	check "$as: a wrong secret is refused" refused $url wrong
	check "$as: nobody is let in without" anonymous $url
	lio_chap $name portal portal-secret16 _mutual
	check "$as: both prove themselves" chap $url right proof
	wanted='prove|proof|secret'
	check "$as: a target that cannot prove itself is left" refused $url right wrong
done

# Sessions of several connections, and the recovery levels, over TCP: LIO offers neither over iSER. Nothing is cut here: when a
# connection has been recovered, LIO's next logout brings the kernel down (docs/interop.md).
lio_target $IQN-mcs $IP:3265 tcp
echo 4 >$LIO/iscsi/$IQN-mcs/tpgt_1/param/MaxConnections
echo 2 >$LIO/iscsi/$IQN-mcs/tpgt_1/attrib/default_erl
mcs=iscsi://$IP:3265/$IQN-mcs/0
for setting in "4 0" "1 1" "1 2" "4 2"; do
	set -- $setting
	flags="--session-connections $1 --recovery-level $2"
	as="tcp: $1 connection$([ $1 = 1 ] || echo s), recovery level $2"
	check "$as: agreed" sh -c "iser $flags info $mcs | tee /tmp/info; grep -E 'MaxConnections +$1\$' /tmp/info && grep -E 'ErrorRecoveryLevel +$2\$' /tmp/info"
	check "$as: 16 MiB written, read back and compared" sh -c "iser $flags --log-level warn cp --verify /tmp/large $mcs 2>/tmp/warned && ! grep 'no further connection' /tmp/warned"
	check "$as: digests too" iser $flags --digests cp --verify /tmp/small $mcs
done
check "no connection is left" sh -c "! ss -tnH state established dport = :3265 | grep ."
finish
