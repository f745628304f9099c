package iscsi

// Params are the operational parameters in force after a login: the outcome of the key
// negotiation (RFC 7143, section 13; RFC 7145, section 6). Lengths are in octets, times in seconds.
type Params struct {
	Discovery     bool // SessionType
	InitiatorName string
	TargetName    string
	ISID          [6]byte
	TSIH          uint16
	CID           uint16
	PortalGroup   uint16

	HeaderDigest, DataDigest bool // CRC32C

	InitialR2T          bool
	ImmediateData       bool
	MaxBurstLength      int
	FirstBurstLength    int
	MaxOutstandingR2T   int
	DataPDUInOrder      bool
	DataSequenceInOrder bool
	ErrorRecoveryLevel  int
	DefaultTime2Wait    int
	DefaultTime2Retain  int
	MaxConnections      int
	ISCSIProtocolLevel  int
	TaskReporting       string
	MaxRecvDataSegment  int // what this side declared
	MaxSendDataSegment  int // what the peer declared: the limit on what this side sends

	// RFC 7145.
	RDMAExtensions                   bool
	TargetRecvDataSegmentLength      int
	InitiatorRecvDataSegmentLength   int
	MaxOutstandingUnexpectedPDUs     uint32 // the peer's; 0 no limit
	OwnMaxOutstandingUnexpectedPDUs  uint32
	MaxAHSLength                     uint32 // the peer's; 0 no limit
	TaggedBufferForSolicitedDataOnly bool
	ISERHelloRequired                bool
}
