-- Attaches an iSER dissector to RDMAP Sends: tshark's own iSER dissector knows InfiniBand only. The header is
-- RFC 7145's (section 9.2), 28 octets; what follows is for the stock iSCSI dissector.
local iser = Proto("iser_iwarp", "iSER over iWARP")
local f = iser.fields
f.opcode = ProtoField.uint8("iser_iwarp.opcode", "Opcode", base.DEC, { [1] = "iSCSI control PDU", [2] = "Hello", [3] = "HelloReply" }, 0xf0)
f.wsv = ProtoField.bool("iser_iwarp.wsv", "Write STag valid", 8, nil, 0x08)
f.rsv = ProtoField.bool("iser_iwarp.rsv", "Read STag valid", 8, nil, 0x04)
f.wstag = ProtoField.uint32("iser_iwarp.write_stag", "Write STag", base.HEX)
f.wbase = ProtoField.uint64("iser_iwarp.write_base", "Write Base Offset", base.HEX)
f.rstag = ProtoField.uint32("iser_iwarp.read_stag", "Read STag", base.HEX)
f.rbase = ProtoField.uint64("iser_iwarp.read_base", "Read Base Offset", base.HEX)

local HEADER, BHS = 28, 48
local iscsi = Dissector.get("iscsi")

local function dissect(buf, pinfo, tree)
	if buf:len() < HEADER + BHS then return false end
	local first = buf(0, 1):uint()
	if bit32.rshift(first, 4) ~= 1 or bit32.band(first, 3) ~= 0 or buf(1, 3):uint() ~= 0 then return false end
	local t = tree:add(iser, buf(0, HEADER))
	t:add(f.opcode, buf(0, 1))
	t:add(f.wsv, buf(0, 1))
	t:add(f.rsv, buf(0, 1))
	t:add(f.wstag, buf(4, 4))
	t:add(f.wbase, buf(8, 8))
	t:add(f.rstag, buf(16, 4))
	t:add(f.rbase, buf(20, 8))
	iscsi:call(buf(HEADER):tvb(), pinfo, tree)
	return true
end

iser:register_heuristic("iwarp_ddp_rdmap", dissect)
