package store_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/store"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]store.Spec{
		"disk.img":                     {Kind: "file", Path: "disk.img"},
		"disk.img,size=1GiB":           {Kind: "file", Path: "disk.img", Size: 1 << 30},
		"file:disk.img,size=3M,ro":     {Kind: "file", Path: "disk.img", Size: 3 << 20, ReadOnly: true},
		"file:mem:1":                   {Kind: "file", Path: "mem:1"},
		"a,,b.img":                     {Kind: "file", Path: "a,b.img"},
		"/dev/disk:0":                  {Kind: "file", Path: "/dev/disk:0"},
		"mem:64MiB":                    {Kind: "memory", Size: 64 << 20},
		"null:1TiB,ro":                 {Kind: "null", Size: 1 << 40, ReadOnly: true},
		"mem:1K,block=4096,thin":       {Kind: "memory", Size: 1024, Options: map[string]string{"block": "4096", "thin": ""}},
		"disk.img,block=512,size=1024": {Kind: "file", Path: "disk.img", Size: 1024, Options: map[string]string{"block": "512"}},
	} {
		got, err := store.Parse(text, "block", "thin")
		require.NoError(t, err, text)
		assert.Equal(t, text, got.String())
		assert.Equal(t, want.Kind, got.Kind, text)
		assert.Equal(t, want.Path, got.Path, text)
		assert.Equal(t, want.Size, got.Size, text)
		assert.Equal(t, want.ReadOnly, got.ReadOnly, text)
		assert.Equal(t, want.Options, got.Options, text)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "no file name",
		"file:":                    "no file name",
		",size=1":                  "no file name",
		"mem:":                     `bad size ""`,
		"mem:big":                  `bad size "big"`,
		"mem:0":                    "is zero",
		"mem:-1":                   "bad size",
		"null:16EiB":               "too large",
		"null:9223372036854775808": "too large",
		"mem:7EiB":                 "no memory holds more than 64TiB",
		"mem:1MiB,size=2MiB":       "the size is given as mem:SIZE",
		"disk.img,size=1XB":        `bad size "1XB"`,
		"disk.img,size=":           "bad size",
		"disk.img,size=1,size=2":   "size is given twice",
		"disk.img,ro=1":            "ro takes no value",
		"disk.img,frob":            `unknown option "frob" (known: size, ro, block)`,
		"disk.img,":                `unknown option ""`,
		"disk.img,block=1,block=2": "block is given twice",
	} {
		_, err := store.Parse(text, "block")
		require.Error(t, err, text)
		assert.Contains(t, err.Error(), want, text)
		assert.True(t, strings.HasPrefix(err.Error(), text+": "), err.Error())
		assert.NotContains(t, err.Error(), "\n")
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "512b": 512, "1k": 1024, "1KiB": 1024, "1kB": 1000, "2MB": 2e6, "3 MiB": 3 << 20, "4g": 4 << 30, "7EiB": 7 << 60,
		"9223372036854775807": 1<<63 - 1,
	} {
		got, err := store.ParseSize(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	assert.Equal(t, "1536MiB", store.FormatSize(3<<29))
	assert.Equal(t, "1000 octets", store.FormatSize(1000))
}

func TestOpenSpec(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "disk.img")
	open := func(text string) error {
		s, err := store.Open(text)
		if err == nil {
			require.NoError(t, s.Close())
		}
		return err
	}
	assert.EqualError(t, open(path), path+": no such file (size=SIZE creates it)")
	assert.EqualError(t, open(path+",size=1MiB,ro"), path+",size=1MiB,ro: no such file, and ro creates none")
	require.NoError(t, open(path+",size=1MiB"))
	require.NoError(t, open(path+",size=1MiB"), "the same again finds the file")
	require.NoError(t, open(path))
	for _, size := range []string{"2MiB", "512KiB"} {
		text := path + ",size=" + size
		assert.EqualError(t, open(text), text+": the existing file has 1MiB, not "+size+"; it is left as it is (leave size out to use it)")
		fi, err := os.Stat(path)
		require.NoError(t, err)
		assert.EqualValues(t, 1<<20, fi.Size())
	}
	s, err := store.Open(path)
	require.NoError(t, err)
	assert.EqualError(t, open(path), path+": the same file is named twice")
	require.NoError(t, s.Close())

	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	assert.EqualError(t, open(empty), empty+": the existing file is empty")
	missing := filepath.Join(dir, "no", "disk.img")
	assert.ErrorContains(t, open(missing+",size=1MiB"), "no such file or directory")
	assert.ErrorContains(t, open(dir), "neither a regular file nor a block device")

	for _, text := range []string{"mem:1MiB,ro", "null:1MiB,ro"} {
		s, err := store.Open(text)
		require.NoError(t, err)
		assert.True(t, s.Info().ReadOnly)
		_, err = s.WriteAt([]byte{1}, 0)
		assert.ErrorIs(t, err, store.ErrReadOnly)
		_, can := s.(store.Discarder)
		assert.False(t, can)
		require.NoError(t, s.Close())
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"disk.img,size=1GiB", "mem:64MiB", "null:1TiB,ro", "a,,b,block=4096", "file:,size=", "mem:9999999999999999999E"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := store.Parse(text, "block")
		if err != nil {
			return
		}
		if s.Size < 0 || s.Kind != "file" && s.Size == 0 || s.Kind == "file" && s.Path == "" {
			t.Fatalf("%q gives %+v", text, s)
		}
	})
}
