# librdmacm's rping over siw at one end, iwarp rping at the other: Sends, RDMA Reads and RDMA Writes, verified; and what
# becomes of each side when the other is killed midway.
. /host/lib.sh
siw_up
rounds=100
exchange() { # NAME SERVER... -- CLIENT...: rounds pings of three sizes
	local name=$1 server=() size
	shift
	while [ "$1" != -- ]; do server+=("$1"); shift; done
	shift
	"${server[@]}" >/tmp/server.log 2>&1 &
	local pid=$!
	await 60 "$name: the server to listen" listens 7174 || return
	for size in 64 4096 65535; do # the most that librdmacm's rping takes
		check "$name: $rounds verified pings of $size octets" timeout 120 "$@" -C $rounds -S $size -V
	done
	kill $pid
	wait $pid 2>/dev/null
	await 30 "$name: the port to be free" not_listening 7174
}
killed_client() { # NAME SERVER... -- CLIENT...: the server serves on after a client was killed
	local name=$1 server=() dead
	shift
	while [ "$1" != -- ]; do server+=("$1"); shift; done
	shift
	"${server[@]}" >/tmp/server.log 2>&1 &
	local pid=$!
	await 60 "$name: the server to listen" listens 7174 || return
	rm -f /tmp/client.out # the one before has pings in it
	"$@" -v >/tmp/client.out 2>&1 &
	dead=$!
	await 60 "$name: pings under way" [ -s /tmp/client.out ]
	kill -9 $dead
	wait $dead 2>/dev/null
	check "$name: the server serves the next client" timeout 60 "$@" -C 10 -V
	check "$name: the server lives" kill -0 $pid
	kill $pid
	wait $pid 2>/dev/null
	await 30 "$name: the port to be free" not_listening 7174
}
killed_server() { # NAME SERVER... -- CLIENT...: the client ends, with an error
	local name=$1 server=() status
	shift
	while [ "$1" != -- ]; do server+=("$1"); shift; done
	shift
	"${server[@]}" >/tmp/server.log 2>&1 &
	local pid=$!
	await 60 "$name: the server to listen" listens 7174 || return
	rm -f /tmp/client.out
	timeout 60 "$@" -v >/tmp/client.out 2>/tmp/client.err &
	local client=$!
	await 60 "$name: pings under way" [ -s /tmp/client.out ]
	kill -9 $pid
	wait $pid 2>/dev/null
	wait $client
	status=$?
	cat /tmp/client.err
	if [ ${1} = rping ]; then # says so, with status 0 at times
		check "$name: the client ends (status $status)" [ $status != 124 ]
	else
		check "$name: the client ends with an error (status $status)" [ $status != 0 -a $status != 124 ]
	fi
	await 30 "$name: the port to be free" not_listening 7174
}
ours="iwarp rping $CRC"
server="-s -a $IP -P"
client="-c -a $IP"
capture_start "" "tcp port 7174"
exchange "rping to iwarp" $ours $server -- rping $client
exchange "iwarp to rping" rping $server -S 65535 -- $ours $client
capture_stop
killed_client "rping killed" $ours $server -- rping $client
killed_server "iwarp server killed" $ours $server -- rping $client
killed_client "iwarp killed" rping $server -- $ours $client
killed_server "rping server killed" rping $server -- $ours $client
check "iwarp's error is one line" sh -c "cat /tmp/client.err; [ \$(wc -l </tmp/client.err) = 1 ]"
check "the kernel has nothing to complain of" warnings
finish
