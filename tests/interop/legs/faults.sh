# Wrong things in both directions: what each side answers, and what our side says of it. Captures are not held to be clean.
. /host/lib.sh
siw_up
peer="peer -crc=$PEERCRC"
capture_start bad "tcp port 7174 or tcp port 7175 or tcp port 3260"

# siw as the server.
rping -s -a $IP -p 7174 -P -S 4096 >/tmp/rping.log 2>&1 &
await 60 "rping" listens 7174 || finish
check "siw answers each fault as known" $peer faults $IP:7174 siw
cat /tmp/check.out
check "siw's Terminate is decoded into one line" $peer provoke $IP:7174
cat /tmp/check.out
check "siw refuses Markers" $peer markers $IP:7174 siw
check "siw hangs up on a half-open peer" $peer half-open $IP:7174
cat /tmp/check.out

# Ours as the server.
iwarp rping $CRC -s -a $IP -p 7175 -P >/tmp/iwarp.out 2>/tmp/iwarp.log &
await 60 "iwarp rping" listens 7175 || finish
check "ours answers each fault as the RFCs say" $peer faults $IP:7175 ours
cat /tmp/check.out
check "ours says each fault in a line" sh -c "cat /tmp/iwarp.out; [ \$(grep -c '^client' /tmp/iwarp.out) -ge $([ $PEERCRC = true ] && echo 8 || echo 7) ]"
cat /tmp/check.out
check "ours is silent after a bad first FPDU" $peer bad-first $IP:7175
check "ours makes Markers" $peer markers $IP:7175 ours
check "ours hangs up on a half-open peer" $peer half-open $IP:7175
cat /tmp/check.out
check "ours serves on" timeout 60 rping -c -a $IP -p 7175 -C 5 -V

# iserd, which begins with the login.
iserd_up --lun mem:8MiB
check "iserd is silent after a bad first FPDU" $peer bad-first $IP:3260
check "iserd hangs up on a half-open peer" $peer half-open $IP:3260
cat /tmp/check.out
initiator_up
check "iserd serves on" sh -c "iscsiadm -m discovery -t st -p $IP:3260 -I iser | grep $IQN"
iserd_down

# Both as clients of a peer that rejects, and of one that never answers.
answering() { # HOW COMMAND...: runs the command against a peer on port 7180
	local how=$1 pid status
	shift
	$peer $how $IP:7180 >/tmp/$how.ready 2>&1 &
	pid=$!
	await 30 "the peer to listen" grep -q ready /tmp/$how.ready
	timeout 60 "$@" >/tmp/client.out 2>/tmp/client.err
	status=$?
	kill $pid 2>/dev/null
	wait $pid 2>/dev/null
	cat /tmp/client.out /tmp/client.err
	[ $status != 0 ] && [ $status != 124 ]
}
one_line() { "$@" && [ $(wc -l </tmp/client.err) = 1 ]; }
check "rping takes a rejection with private data" answering reject rping -c -a $IP -p 7180 -C 1
cat /tmp/check.out
check "iwarp takes a rejection with private data, and says so in a line" one_line answering reject iwarp rping $CRC -c -a $IP -p 7180 -C 1
check "it is called a rejection" grep -i reject /tmp/client.err
cat /tmp/check.out
check "iwarp gives a mute peer up, and says so in a line" one_line answering mute iwarp rping $CRC -c -a $IP -p 7180 -C 1 --timeout 3s
cat /tmp/client.err
check "rping gives a mute peer up" answering mute rping -c -a $IP -p 7180 -C 1
capture_stop
finish
