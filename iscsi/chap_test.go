package iscsi

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const (
	chapSecret = "correct horse battery"
	chapMutual = "target's own proof"
)

// counting is a source of octets that are known: 01 02 03 ... from where it begins.
type counting byte

func (c *counting) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(*c)
		*c++
	}
	return len(b), nil
}

func users(t testing.TB) []Credentials {
	return []Credentials{{User: "bob", Secret: secret(t, "bob's long secret")}, {User: "alice", Secret: secret(t, chapSecret)}}
}

func chapTarget(t testing.TB, mutual bool) *CHAPTarget {
	cfg := CHAPTargetConfig{Users: users(t)}
	if mutual {
		cfg.Mutual = Credentials{User: "disk", Secret: secret(t, chapMutual)}
	}
	c, err := NewCHAPTarget(cfg)
	require.NoError(t, err)
	return c
}

func chapInitiator(t testing.TB, mutual bool) *CHAPInitiator {
	cfg := CHAPInitiatorConfig{Credentials: Credentials{User: "alice", Secret: secret(t, chapSecret)}}
	if mutual {
		cfg.Mutual = Credentials{User: "disk", Secret: secret(t, chapMutual)}
	}
	c, err := NewCHAPInitiator(cfg)
	require.NoError(t, err)
	return c
}

// golden are exchanges worked out from the definition alone (RFC 1994, section 4.1: the hash of identifier, secret and challenge, in that
// order), with another program than this one.
var golden = []struct {
	algorithm CHAPAlgorithm
	id        byte
	challenge string
	response  string
	mutualID  byte
	back      string // the initiator's challenge
	proof     string
}{
	{
		CHAPMD5, 0x1f, "0102030405060708090a0b0c0d0e0f10", "82eae08625cfa6e161293c6c4fe1feb6",
		0x80, "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf", "736dd99ce815da7b556eb3ed90a0f491",
	},
	{
		CHAPSHA1, 0, "0102030405060708090a0b0c0d0e0f1011121314", "0ad217b5bfb81d886535f05e2c006c8f7c6f9a45",
		1, "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3", "7ded9fd923d70ea8eb96f32e186ee4190e4a217b",
	},
	{
		CHAPSHA256, 255, "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20", "26c18a2eb0e25e730776a1552ab9284f7210438a8e50c35b45de85cfecbd0da4",
		2, "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf", "de82c6f2fbf9badab0172bb8e92ee21ba3dbf8d5a396f1662a47f25eeef13b8f",
	},
	{
		CHAPSHA3256, 7, "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20", "28e556ed34431557cdfabf44678a76f1eec8a369b3b0844bab48a148edcb7a99",
		3, "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf", "491b2b9d4d6119237297f83936bf84e01bd5d20525bd99cc8076c67514a82a22",
	},
}

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

// TestCHAPGolden holds both roles, in both directions, against exchanges that were worked out by hand.
func TestCHAPGolden(t *testing.T) { // RFC 7143, section 12.1.3; RFC 1994, section 4.1
	for _, g := range golden {
		t.Run(g.algorithm.String(), func(t *testing.T) {
			a := strconv.Itoa(int(g.algorithm))
			tg := chapTarget(t, true)
			tg.cfg.Rand = bytes.NewReader(append([]byte{g.id}, unhex(t, g.challenge)...))
			ini := chapInitiator(t, true)
			ini.cfg.Algorithms = []CHAPAlgorithm{g.algorithm}
			ini.cfg.Rand = bytes.NewReader(append([]byte{g.mutualID}, unhex(t, g.back)...))

			out, last, err := ini.Exchange(nil)
			require.NoError(t, err)
			require.False(t, last)
			require.Equal(t, Text{{"CHAP_A", a}}, out)
			out, last, err = tg.Exchange(out)
			require.NoError(t, err)
			require.False(t, last)
			require.Equal(t, Text{{"CHAP_A", a}, {"CHAP_I", strconv.Itoa(int(g.id))}, {"CHAP_C", "0x" + g.challenge}}, out)
			require.Error(t, tg.Done())
			require.Empty(t, tg.User())
			out, last, err = ini.Exchange(out)
			require.NoError(t, err)
			require.True(t, last)
			require.Equal(t, Text{
				{"CHAP_N", "alice"}, {"CHAP_R", "0x" + g.response}, {"CHAP_I", strconv.Itoa(int(g.mutualID))}, {"CHAP_C", "0x" + g.back},
			}, out)
			require.Error(t, ini.Done(), "the target has to prove itself")
			out, last, err = tg.Exchange(out)
			require.NoError(t, err)
			require.True(t, last)
			require.Equal(t, Text{{"CHAP_N", "disk"}, {"CHAP_R", "0x" + g.proof}}, out)
			require.NoError(t, tg.Done())
			require.Equal(t, "alice", tg.User())
			_, last, err = ini.Exchange(out)
			require.NoError(t, err)
			require.True(t, last)
			require.NoError(t, ini.Done())
		})
	}
}

// TestCHAPAlgorithms: the initiator's order decides among those that the target takes.
func TestCHAPAlgorithms(t *testing.T) {
	for _, c := range []struct {
		offer string
		takes []CHAPAlgorithm
		want  string // "" refused
	}{
		{"5", nil, "5"},
		{"8,7,6,5", nil, "8"},
		{"5,8", nil, "5"},
		{"99,300,x,-1,,7", nil, "7"},
		{"0x07,5", nil, "7"},
		{"8,7,6,5", []CHAPAlgorithm{CHAPMD5, CHAPSHA1}, "6"},
		{"5", []CHAPAlgorithm{CHAPSHA256}, ""},
		{"", nil, ""},
		{"9", nil, ""},
		{"0", nil, ""},
	} {
		tg := chapTarget(t, false)
		if c.takes != nil {
			tg.cfg.Algorithms = c.takes
		}
		out, _, err := tg.Exchange(Text{{"CHAP_A", c.offer}})
		if c.want == "" {
			require.ErrorIs(t, err, ErrCHAP, c.offer)
			continue
		}
		require.NoError(t, err)
		got, _ := out.Get("CHAP_A")
		require.Equal(t, c.want, got, c.offer)
	}
	for _, a := range CHAPAlgorithms() {
		got, err := ParseCHAPAlgorithm(strings.ToLower(a.String()))
		require.NoError(t, err)
		require.Equal(t, a, got)
	}
	_, err := ParseCHAPAlgorithm("md4")
	require.Error(t, err)
	_, err = NewCHAPTarget(CHAPTargetConfig{Users: users(t), Algorithms: []CHAPAlgorithm{4}})
	require.Error(t, err)
}

// md5Response is the definition in a line.
func md5Response(id byte, secret string, challenge []byte) []byte {
	s := md5.Sum(append(append([]byte{id}, secret...), challenge...))
	return s[:]
}

// challenged is a target that has sent its challenge, which is known.
func challenged(t testing.TB, mutual bool) (c *CHAPTarget, id byte, challenge []byte) {
	c = chapTarget(t, mutual)
	src := counting(9)
	c.cfg.Rand = &src
	_, _, err := c.Exchange(Text{{"CHAP_A", "5"}})
	require.NoError(t, err)
	return c, c.challenge.id, c.challenge.octets
}

// TestCHAPEncodings: what a target makes of each way to write names and proofs.
func TestCHAPEncodings(t *testing.T) {
	for name, c := range map[string]struct {
		user  string
		reply func(r []byte) string
		ok    bool
	}{
		"hexadecimal":           {"alice", FormatBinary, true},
		"upper case":            {"alice", func(r []byte) string { return "0X" + strings.ToUpper(hex.EncodeToString(r)) }, true},
		"base64":                {"alice", func(r []byte) string { return "0b" + base64.StdEncoding.EncodeToString(r) }, true},
		"upper case base64":     {"alice", func(r []byte) string { return "0B" + base64.StdEncoding.EncodeToString(r) }, true},
		"base64 of too much":    {"alice", func([]byte) string { return "0b" + strings.Repeat("A", 4096) }, false},
		"an octet short":        {"alice", func(r []byte) string { return FormatBinary(r[1:]) }, false},
		"an octet long":         {"alice", func(r []byte) string { return FormatBinary(append(r, 0)) }, false},
		"odd digits":            {"alice", func([]byte) string { return "0x123" }, false},
		"no digits":             {"alice", func([]byte) string { return "0x" }, false},
		"no prefix":             {"alice", hex.EncodeToString, false},
		"no hexadecimal":        {"alice", func([]byte) string { return "0x" + strings.Repeat("zz", 16) }, false},
		"empty":                 {"alice", func([]byte) string { return "" }, false},
		"another case of user":  {"Alice", FormatBinary, false},
		"nobody":                {"", FormatBinary, false},
		"name like hexadecimal": {"0x616c696365", FormatBinary, false},
		"name like base64":      {"0bYWxpY2U=", FormatBinary, false},
	} {
		t.Run(name, func(t *testing.T) {
			tg, id, challenge := challenged(t, false)
			_, _, err := tg.Exchange(Text{{"CHAP_N", c.user}, {"CHAP_R", c.reply(md5Response(id, chapSecret, challenge))}})
			if c.ok {
				require.NoError(t, err)
				require.NoError(t, tg.Done())
				return
			}
			require.ErrorIs(t, err, ErrCHAP)
			require.Error(t, tg.Done())
		})
	}
	// An odd number of digits means a zero in front: a proof that begins with one is written so.
	tg, _, _ := challenged(t, false)
	for i := 0; ; i++ {
		tg.challenge.octets = []byte{byte(i), byte(i >> 8)}
		r := md5Response(tg.challenge.id, chapSecret, tg.challenge.octets)
		if r[0] < 16 {
			_, _, err := tg.Exchange(Text{{"CHAP_N", "alice"}, {"CHAP_R", "0x" + hex.EncodeToString(r)[1:]}})
			require.NoError(t, err)
			break
		}
	}
	// Names that look like numbers are names.
	for _, user := range []string{"0x616263", "0bYWJj", "0"} {
		tg, err := NewCHAPTarget(CHAPTargetConfig{Users: []Credentials{{User: user, Secret: secret(t, chapSecret)}}})
		require.NoError(t, err)
		ini, err := NewCHAPInitiator(CHAPInitiatorConfig{Credentials: Credentials{User: user, Secret: secret(t, chapSecret)}})
		require.NoError(t, err)
		a, _, _ := ini.Exchange(nil)
		b, _, err := tg.Exchange(a)
		require.NoError(t, err)
		n, _, err := ini.Exchange(b)
		require.NoError(t, err)
		got, _ := n.Get("CHAP_N")
		require.Equal(t, user, got)
		_, _, err = tg.Exchange(n)
		require.NoError(t, err)
	}
}

// TestCHAPLongChallenges: challenges of up to 1024 octets are hashed whole, in both directions; longer ones are refused.
func TestCHAPLongChallenges(t *testing.T) { // RFC 7143, section 12.1.3
	long := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i*7 + 3)
		}
		return b
	}
	for n, want := range map[int]string{1024: "039adc44c0b5952bb0ce25582105f5c7", 256: "f11a177f45dfb8b947b9fef9857caeac", 1: "76aca2c76d6618b95c0b609880cf8752"} {
		for _, c := range []string{FormatBinary(long(n)), "0b" + base64.StdEncoding.EncodeToString(long(n))} {
			ini := chapInitiator(t, false)
			_, _, err := ini.Exchange(nil)
			require.NoError(t, err)
			out, _, err := ini.Exchange(Text{{"CHAP_A", "5"}, {"CHAP_I", "0x9"}, {"CHAP_C", c}})
			require.NoError(t, err)
			got, _ := out.Get("CHAP_R")
			require.Equal(t, "0x"+want, got)

			tg, id, challenge := challenged(t, true)
			out, _, err = tg.Exchange(Text{
				{"CHAP_N", "alice"},
				{"CHAP_R", FormatBinary(md5Response(id, chapSecret, challenge))},
				{"CHAP_I", "0x1F"},
				{"CHAP_C", c},
			})
			require.NoError(t, err)
			got, _ = out.Get("CHAP_R")
			require.Equal(t, FormatBinary(md5Response(0x1f, chapMutual, long(n))), got)
		}
	}
	for _, c := range []string{FormatBinary(long(1025)), "0b" + base64.StdEncoding.EncodeToString(long(1025)), "0x", "", "1234"} {
		ini := chapInitiator(t, false)
		_, _, err := ini.Exchange(nil)
		require.NoError(t, err)
		_, _, err = ini.Exchange(Text{{"CHAP_A", "5"}, {"CHAP_I", "9"}, {"CHAP_C", c}})
		require.ErrorIs(t, err, ErrCHAP)
	}
	for _, i := range []string{"256", "0x100", "-1", "+1", "", "x"} {
		ini := chapInitiator(t, false)
		_, _, err := ini.Exchange(nil)
		require.NoError(t, err)
		_, _, err = ini.Exchange(Text{{"CHAP_A", "5"}, {"CHAP_I", i}, {"CHAP_C", "0x01"}})
		require.ErrorIs(t, err, ErrCHAP, i)
	}
	// A whole login text with the longest challenge passes the parser.
	text := Text{{"CHAP_A", "5"}, {"CHAP_I", "1"}, {"CHAP_C", FormatBinary(long(1024))}}
	got, err := ParseText(text.Append(nil))
	require.NoError(t, err)
	require.Equal(t, text, got)
}

// TestCHAPTellsNothing: an unknown user and a wrong secret are one error, and the same work.
func TestCHAPTellsNothing(t *testing.T) {
	attempt := func(user string) (allocs float64, err error) {
		tg, id, challenge := challenged(t, false)
		in := Text{{"CHAP_N", user}, {"CHAP_R", FormatBinary(md5Response(id, "guess", challenge))}}
		_, _, err = tg.Exchange(in)
		response := md5Response(id, "guess", challenge)
		return testing.AllocsPerRun(10, func() { tg.proven(user, response) }), err
	}
	n1, unknown := attempt("carol")
	n2, wrong := attempt("alice")
	require.Error(t, unknown)
	require.EqualError(t, unknown, wrong.Error())
	require.Equal(t, n2, n1)
	require.NotContains(t, wrong.Error(), "alice")
	// The proof of another user's secret does not do, whoever is named, the stand-in for unknown names included.
	for _, user := range []string{"alice", "carol"} {
		tg, id, challenge := challenged(t, false)
		_, _, err := tg.Exchange(Text{{"CHAP_N", user}, {"CHAP_R", FormatBinary(md5Response(id, "bob's long secret", challenge))}})
		require.ErrorIs(t, err, ErrCHAP)
	}
}

// TestCHAPTargetRefuses: reflection, replay, and keys out of turn.
func TestCHAPTargetRefuses(t *testing.T) {
	good := func(id byte, challenge []byte) Text {
		return Text{{"CHAP_N", "alice"}, {"CHAP_R", FormatBinary(md5Response(id, chapSecret, challenge))}}
	}
	for name, c := range map[string]struct {
		mutual bool
		text   func(id byte, challenge []byte) Text
		want   string
	}{
		"its own challenge back": {true, func(id byte, ch []byte) Text {
			return append(good(id, ch), KeyValue{"CHAP_I", "7"}, KeyValue{"CHAP_C", FormatBinary(ch)})
		}, "own challenge back"},
		"mutual, not configured": {false, func(id byte, ch []byte) Text {
			return append(good(id, ch), KeyValue{"CHAP_I", "7"}, KeyValue{"CHAP_C", "0x0102"})
		}, "none is configured"},
		"challenge without identifier": {true, func(id byte, ch []byte) Text {
			return append(good(id, ch), KeyValue{"CHAP_C", "0x0102"})
		}, "without the other"},
		"identifier without challenge": {true, func(id byte, ch []byte) Text {
			return append(good(id, ch), KeyValue{"CHAP_I", "1"})
		}, "without the other"},
		"another algorithm now": {true, func(id byte, ch []byte) Text {
			return append(good(id, ch), KeyValue{"CHAP_A", "5"})
		}, "out of turn"},
		"a key twice": {true, func(id byte, ch []byte) Text {
			return append(good(id, ch), KeyValue{"CHAP_N", "bob"})
		}, "out of turn"},
		"no name":  {true, func(id byte, ch []byte) Text { return good(id, ch)[1:] }, "no CHAP_N"},
		"no proof": {true, func(id byte, ch []byte) Text { return good(id, ch)[:1] }, "CHAP_R"},
		"nothing":  {true, func(byte, []byte) Text { return nil }, "no CHAP_N"},
	} {
		t.Run(name, func(t *testing.T) {
			tg, id, challenge := challenged(t, c.mutual)
			out, _, err := tg.Exchange(c.text(id, challenge))
			require.ErrorIs(t, err, ErrCHAP)
			require.ErrorContains(t, err, c.want)
			require.Empty(t, out)
			require.Error(t, tg.Done())
			_, _, err = tg.Exchange(good(id, challenge))
			require.ErrorIs(t, err, ErrCHAP, "one attempt for one challenge")
			require.Error(t, tg.Done())
		})
	}
	tg, id, challenge := challenged(t, false)
	_, _, err := tg.Exchange(good(id, challenge))
	require.NoError(t, err)
	_, _, err = tg.Exchange(good(id, challenge))
	require.Error(t, err, "the same again")
	// A proof recorded from one login is worth nothing in another.
	again := chapTarget(t, false)
	_, _, err = again.Exchange(Text{{"CHAP_A", "5"}})
	require.NoError(t, err)
	_, _, err = again.Exchange(good(id, challenge))
	require.ErrorIs(t, err, ErrCHAP)
	// Proof before challenge.
	_, _, err = chapTarget(t, false).Exchange(good(1, []byte{1}))
	require.ErrorIs(t, err, ErrCHAP)

	_, err = NewCHAPTarget(CHAPTargetConfig{Users: users(t), Mutual: Credentials{User: "disk", Secret: secret(t, chapSecret)}})
	require.ErrorIs(t, err, ErrSecret, "one secret in both directions")
	require.NotContains(t, err.Error(), chapSecret)
	_, err = NewCHAPTarget(CHAPTargetConfig{Users: append(users(t), users(t)[0])})
	require.ErrorIs(t, err, ErrSecret)
	_, err = NewCHAPTarget(CHAPTargetConfig{})
	require.ErrorIs(t, err, ErrSecret)
	_, err = NewCHAPTarget(CHAPTargetConfig{Users: users(t), Mutual: Credentials{Secret: secret(t, "x")}})
	require.ErrorIs(t, err, ErrSecret)
}

// TestCHAPInitiatorRefuses: a target that reflects, that proves nothing, or another's secret.
func TestCHAPInitiatorRefuses(t *testing.T) {
	start := func() *CHAPInitiator {
		ini := chapInitiator(t, true)
		_, _, err := ini.Exchange(nil)
		require.NoError(t, err)
		return ini
	}
	ask := Text{{"CHAP_A", "5"}, {"CHAP_I", "1"}, {"CHAP_C", "0x0102030405060708090a0b0c0d0e0f10"}}
	for name, reply := range map[string]func(ini *CHAPInitiator, sent Text) Text{
		"our proof back": func(_ *CHAPInitiator, sent Text) Text {
			r, _ := sent.Get("CHAP_R")
			return Text{{"CHAP_N", "disk"}, {"CHAP_R", r}}
		},
		"our challenge back": func(_ *CHAPInitiator, sent Text) Text {
			i, _ := sent.Get("CHAP_I")
			c, _ := sent.Get("CHAP_C")
			return Text{{"CHAP_A", "5"}, {"CHAP_I", i}, {"CHAP_C", c}}
		},
		"our secret": func(ini *CHAPInitiator, _ Text) Text {
			return Text{{"CHAP_N", "disk"}, {"CHAP_R", FormatBinary(md5Response(ini.challenge.id, chapSecret, ini.challenge.octets))}}
		},
		"another name": func(ini *CHAPInitiator, _ Text) Text {
			return Text{{"CHAP_N", "other"}, {"CHAP_R", FormatBinary(md5Response(ini.challenge.id, chapMutual, ini.challenge.octets))}}
		},
		"no name": func(ini *CHAPInitiator, _ Text) Text {
			return Text{{"CHAP_R", FormatBinary(md5Response(ini.challenge.id, chapMutual, ini.challenge.octets))}}
		},
		"no proof": func(*CHAPInitiator, Text) Text { return Text{{"CHAP_N", "disk"}} },
		"nothing":  func(*CHAPInitiator, Text) Text { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			ini := start()
			sent, _, err := ini.Exchange(ask)
			require.NoError(t, err)
			require.Error(t, ini.Done())
			_, _, err = ini.Exchange(reply(ini, sent))
			require.ErrorIs(t, err, ErrCHAP)
			require.Error(t, ini.Done())
		})
	}
	for name, in := range map[string]Text{
		"algorithm not offered": {{"CHAP_A", "4"}, {"CHAP_I", "1"}, {"CHAP_C", "0x01"}},
		"no algorithm":          {{"CHAP_I", "1"}, {"CHAP_C", "0x01"}},
		"a proof already":       append(ask[:3:3], KeyValue{"CHAP_R", "0x00"}),
	} {
		_, _, err := start().Exchange(in)
		require.ErrorIs(t, err, ErrCHAP, name)
	}
	// The challenge that the target sends is the one that we are about to send: chance would not do that.
	ini := start()
	src := counting(0)
	ini.cfg.Rand = &src
	_, _, err := ini.Exchange(ask)
	require.ErrorIs(t, err, ErrCHAP)
	// Without being asked nobody proves anything.
	ini = chapInitiator(t, false)
	_, _, err = ini.Exchange(nil)
	require.NoError(t, err)
	_, _, err = ini.Exchange(ask)
	require.NoError(t, err)
	require.NoError(t, ini.Done())
	_, _, err = ini.Exchange(Text{{"CHAP_N", "disk"}, {"CHAP_R", "0x00"}})
	require.ErrorIs(t, err, ErrCHAP)

	me := Credentials{User: "alice", Secret: secret(t, chapSecret)}
	for _, c := range []CHAPInitiatorConfig{
		{},
		{Credentials: Credentials{User: "alice"}},
		{Credentials: me, Mutual: Credentials{User: "disk", Secret: secret(t, chapSecret)}},
		{Credentials: me, Mutual: Credentials{User: "disk"}},
	} {
		err := c.Check()
		require.ErrorIs(t, err, ErrSecret)
		require.NotContains(t, err.Error(), chapSecret)
	}
	anyName, err := NewCHAPInitiator(CHAPInitiatorConfig{Credentials: me, Mutual: Credentials{Secret: secret(t, chapMutual)}})
	require.NoError(t, err)
	_, _, err = anyName.Exchange(nil)
	require.NoError(t, err)
	_, _, err = anyName.Exchange(ask)
	require.NoError(t, err)
	_, _, err = anyName.Exchange(Text{{"CHAP_N", "whoever"}, {"CHAP_R", FormatBinary(md5Response(anyName.challenge.id, chapMutual, anyName.challenge.octets))}})
	require.NoError(t, err)
}

// FuzzCHAPTarget: whatever an initiator sends, the target neither panics nor takes a proof that is none.
func FuzzCHAPTarget(f *testing.F) {
	f.Add([]byte("CHAP_A=5\x00"), []byte("CHAP_N=alice\x00CHAP_R=0x82eae08625cfa6e161293c6c4fe1feb6\x00"))
	f.Add([]byte("CHAP_A=8,7\x00"), []byte("CHAP_N=alice\x00CHAP_R=0b"+strings.Repeat("A", 43)+"=\x00CHAP_I=0xff\x00CHAP_C=0x01\x00"))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		c := chapTarget(t, true)
		for _, b := range [][]byte{one, two} {
			in, err := ParseText(b)
			if err != nil {
				return
			}
			out, _, err := c.Exchange(in)
			if (err != nil) != (c.state == chapFailed) || err != nil && out != nil {
				t.Fatal(err, out)
			}
			if err != nil {
				return
			}
			if n, _ := out.Get("CHAP_R"); n != "" || c.Done() == nil {
				t.Fatal("a proof was guessed")
			}
			if _, err := ParseText(out.Append(nil)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzCHAPInitiator: whatever a target sends, the initiator neither panics nor takes a proof that is none.
func FuzzCHAPInitiator(f *testing.F) {
	f.Add([]byte("CHAP_A=5\x00CHAP_I=31\x00CHAP_C=0x0102030405060708090a0b0c0d0e0f10\x00"), []byte("CHAP_N=disk\x00CHAP_R=0x736dd99ce815da7b556eb3ed90a0f491\x00"))
	f.Add([]byte("CHAP_A=8\x00CHAP_I=0x1\x00CHAP_C=0bAQID\x00"), []byte("CHAP_N=disk\x00CHAP_R=0b"+strings.Repeat("A", 43)+"=\x00"))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		c := chapInitiator(t, true)
		if _, _, err := c.Exchange(nil); err != nil {
			t.Fatal(err)
		}
		for _, b := range [][]byte{one, two} {
			in, err := ParseText(b)
			if err != nil {
				return
			}
			out, _, err := c.Exchange(in)
			if c.Done() == nil {
				t.Fatal("a proof was guessed")
			}
			if err != nil {
				return
			}
			if _, err := ParseText(out.Append(nil)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func ExampleParseCHAPAlgorithm() {
	a, err := ParseCHAPAlgorithm("sha3-256")
	fmt.Println(a, int(a), err)
	// Output: SHA3-256 8 <nil>
}

// TestCHAPProperty: whatever user, secrets and algorithm, the handshake ends well if both sides have the same, and only then.
func TestCHAPProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		octets := rapid.StringMatching(`[!-~]{1,40}`)
		user, own, asked := octets.Draw(t, "user"), octets.Draw(t, "secret"), octets.Draw(t, "mutual")
		if own == asked {
			return
		}
		draw := func(value, label string) string {
			if rapid.IntRange(0, 3).Draw(t, label) > 0 {
				return value
			}
			return octets.Draw(t, "another "+label)
		}
		sayUser, sayOwn, haveAsked := draw(user, "user"), draw(own, "secret"), draw(asked, "mutual")
		mutual := rapid.Bool().Draw(t, "two-way")
		tc := CHAPTargetConfig{Users: []Credentials{{User: user, Secret: secret(t, own)}}, Mutual: Credentials{User: "disk", Secret: secret(t, haveAsked)}}
		ic := CHAPInitiatorConfig{
			Credentials: Credentials{User: sayUser, Secret: secret(t, sayOwn)},
			Algorithms:  []CHAPAlgorithm{rapid.SampledFrom(CHAPAlgorithms()).Draw(t, "algorithm")},
		}
		if mutual {
			ic.Mutual.Secret = secret(t, asked)
		}
		tg, err := NewCHAPTarget(tc)
		if err != nil { // the two directions have one secret
			require.Equal(t, own, haveAsked)
			return
		}
		ini, err := NewCHAPInitiator(ic)
		if err != nil {
			require.Equal(t, sayOwn, asked)
			return
		}
		var in Text
		for range 2 {
			if in, _, err = ini.Exchange(in); err == nil {
				in, _, err = tg.Exchange(in)
			}
			if err != nil {
				break
			}
		}
		require.Equal(t, sayUser == user && sayOwn == own, err == nil && tg.Done() == nil, "%v", err)
		if err == nil && mutual {
			_, _, err = ini.Exchange(in)
			require.Equal(t, haveAsked == asked, err == nil, "%v", err)
			require.Equal(t, err == nil, ini.Done() == nil)
		}
	})
}
