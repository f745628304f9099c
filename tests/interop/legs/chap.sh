# CHAP, one way and both, and in discovery: the kernel's initiator with open-iscsi to iserd, over both transports.
. /host/lib.sh
siw_up
initiator_up
secret() { (umask 077 && echo "$2 $3" >/tmp/$1); }
secret users alice alice-secret-16
secret proof portal portal-secret16
cat >/tmp/iserd.toml <<END
[[portal]]
listen = "$IP:$PORT"

[[discovery.access]]
chap = "/tmp/users"
mutual-chap = "/tmp/proof"

[[target]]
name = "$IQN"
[[target.access]]
chap = "/tmp/users"
mutual-chap = "/tmp/proof"
[[target.lun]]
store = "mem:16MiB"
END
iserd_config

# discover IFACE USER SECRET [TARGET'S USER AND SECRET]
discover() {
	local db="iscsiadm -m discoverydb -t st -p $IP:$PORT -I $1" auth=discovery.sendtargets.auth
	$db -o delete >/dev/null 2>&1
	$db -o new >/dev/null
	if [ -n "$2" ]; then
		$db -o update -n $auth.authmethod -v CHAP
		$db -o update -n $auth.username -v $2
		$db -o update -n $auth.password -v $3
	fi
	if [ -n "$4" ]; then
		$db -o update -n $auth.username_in -v $4
		$db -o update -n $auth.password_in -v $5
	fi
	timeout 90 $db --discover >/tmp/discovered && grep "$IP:$PORT,1 $IQN" /tmp/discovered
}
# credentials USER SECRET [TARGET'S USER AND SECRET]: what the next login has.
credentials() {
	set_node node.session.auth.authmethod CHAP
	set_node node.session.auth.username $1
	set_node node.session.auth.password $2
	[ -z "$3" ] || set_node node.session.auth.username_in $3
	[ -z "$4" ] || set_node node.session.auth.password_in $4
}
io() {
	dd if=/dev/urandom of=/tmp/random bs=64k count=16 2>/dev/null
	dd if=/tmp/random of=$1 bs=64k oflag=direct conv=notrunc 2>/dev/null && dd if=$1 bs=64k count=16 iflag=direct 2>/dev/null | cmp - /tmp/random
}
not() { ! "$@"; }
# attempt COMMAND...: once more if the kernel got stuck: when the answer to a login's PDU overtakes the end of sending it, Linux 6.12 refuses
# to send the next one ("Login/Text in progress") until the login has timed out.
stuck() { dmesg | grep -c 'Cannot start new task'; }
attempt() {
	local before=$(stuck) status
	"$@"
	status=$?
	[ $(stuck) = $before ] && return $status
	note "the kernel got stuck in a login: $*"
	"$@"
}
# refused COMMAND...: it fails because the target says that the proof is missing or wrong.
refusals() { grep -c 'msg="login refused".*0201' /tmp/iserd.log; }
refused() {
	local before=$(refusals)
	! "$@" && [ $(refusals) -gt $before ]
}

for transport in iser tcp; do
	iface=$transport
	[ $transport = tcp ] && iface=default
	capture_start $transport "tcp port $PORT"
	check "$transport: discovery is refused to who says nothing" refused discover $iface
	check "$transport: discovery is refused with a wrong secret" refused discover $iface alice not-this-secret1
	check "$transport: discovery with the right one" discover $iface alice alice-secret-16
	check "$transport: discovery by a portal that proves itself" discover $iface alice alice-secret-16 portal portal-secret16

	node $iface >/dev/null
	set_node node.session.initial_login_retry_max 1
	check "$transport: login is refused without CHAP" refused attempt login
	credentials alice not-this-secret1
	check "$transport: login is refused with a wrong secret" refused attempt login
	credentials mallory alice-secret-16
	check "$transport: login is refused to another user" refused attempt login
	check "$transport: nobody is logged in" no_disks
	credentials alice alice-secret-16
	must "$transport: login with the right one" attempt login
	disk=$(disk 0) || finish
	check "$transport: I/O" io $disk
	check "$transport: logout" logout
	await 60 "the disks to go" no_disks
	credentials alice alice-secret-16 portal not-its-secret-1
	check "$transport: a target that cannot prove itself is left" not attempt login
	credentials alice alice-secret-16 portal portal-secret16
	must "$transport: login with proof from both sides" attempt login
	disk=$(disk 0) || finish
	check "$transport: I/O with proof from both sides" io $disk
	check "$transport: logout" logout
	await 60 "the disks to go" no_disks
	capture_stop
	for algorithm in MD5 SHA1 SHA256 SHA3-256; do
		[ $FULL = 1 ] || [ $transport = tcp ] || continue
		set_node node.session.auth.chap_algs $algorithm
		must "$transport: login with $algorithm" attempt login
		check "$transport: logout" logout
		await 60 "the disks to go" no_disks
	done
done
check "no secret is in iserd's log" not grep -e alice-secret -e portal-secret -e not-this /tmp/iserd.log
iserd_down
finish
