// Package rawpeer plays the other end of iserd and iser octet by octet. It is written from the texts of RFC 7143 (iSCSI),
// RFC 7145 (iSER), RFC 5044 (MPA), RFC 5041 (DDP), RFC 5040 (RDMAP) and RFC 6581 alone: it has its own encoders and decoders,
// shares no line with the packages of this module, and knows the programs only as a user does, by their flags and their addresses.
//
// Each scenario is a script that sends frames and says what has to come back. What passed either way is kept in
// testdata/SCENARIO.txt, field by field and as hexadecimal octets, and compared with what passes now; -update writes it anew:
//
//	go test ./tests/rawpeer -update
//
// Numbers that a peer may choose freely are shown in the order of their appearance, so that the files say the same on every run:
// a target's StatSN counts from 1 on each connection, and Target Transfer Tags, STags, Tagged Offsets and TSIHs are numbered. Digests and CRCs
// are verified and shown as a word.
package rawpeer
