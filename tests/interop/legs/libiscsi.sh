# libiscsi over siw (iser://) to iserd: its tools, and the read and write suites of its test program.
. /host/lib.sh
siw_up
iserd_up --lun mem:64MiB --log-level debug
url=iser://$IP:$PORT/$IQN/0
capture_start "" "tcp port $PORT"
check "iscsi-inq" sh -c "timeout 60 iscsi-inq $url | tee /dev/stderr | grep GOIWARP"
check "iscsi-readcapacity16" sh -c "timeout 60 iscsi-readcapacity16 $url | tee /dev/stderr | grep 'Total size:67108864'"
capture_stop
check "iscsi-perf" sh -c "timeout 60 iscsi-perf -m 8 -b 64 -t 3 $url | tr '\r' '\n' | tail -3 | tee /dev/stderr | grep -i iops"
cat /tmp/check.out
suites="SCSI.Read10 SCSI.Write10"
[ $FULL = 1 ] && suites="SCSI.Read6 SCSI.Read10 SCSI.Read12 SCSI.Read16 SCSI.Write10 SCSI.Write12 SCSI.Write16 SCSI.WriteVerify10 SCSI.CompareAndWrite SCSI.Unmap SCSI.WriteSame10 SCSI.WriteSame16"
for s in $suites; do
	check "iscsi-test-cu $s" timeout 300 iscsi-test-cu -d -t $s $url
	cat /tmp/check.out
done
check "the kernel has nothing to complain of" warnings
iserd_down
finish
