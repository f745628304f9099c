// Package secret gets secrets from where others cannot read them: files that only their owner may read, credentials that systemd hands
// over, and a terminal. Never from arguments or the environment, which ps and logs show.
package secret

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"goiwarp/iscsi"
)

// maxFile bounds what is read of a file, in octets.
const maxFile = 1 << 20

// credential is the prefix of a name that stands for one of systemd's credentials (LoadCredential= and its like; systemd.exec(5)).
const credential = "cred:"

// Help is how the programs' texts tell what a FILE may be.
const Help = `a regular file that nobody but its owner can read (chmod 600), or cred:NAME for a credential of systemd's (LoadCredential=)`

// File reads one secret: the only line of a file, or of a systemd credential if the name is cred:NAME. Errors are one line that names
// the file and shows nothing of what it holds.
func File(name string) (iscsi.Secret, error) {
	text, err := read(name)
	if err != nil {
		return iscsi.Secret{}, err
	}
	line, rest, _ := strings.Cut(text, "\n")
	if strings.TrimSpace(rest) != "" {
		return iscsi.Secret{}, fmt.Errorf("secret file %s: more than one line; it holds the secret alone", name)
	}
	s, err := iscsi.NewSecret(strings.TrimSuffix(line, "\r"))
	if err != nil {
		return s, fmt.Errorf("secret file %s: %w", name, err)
	}
	return s, nil
}

// Users reads users and their secrets, one "USER SECRET" on each line; blank lines and those that begin with # are passed over. Errors are
// as File's, with the line's number.
func Users(name string) ([]iscsi.Credentials, error) {
	text, err := read(name)
	if err != nil {
		return nil, err
	}
	var all []iscsi.Credentials
	seen := make(map[string]bool)
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		user, value := line, ""
		if i := strings.IndexAny(line, " \t"); i >= 0 {
			user, value = line[:i], strings.TrimLeft(line[i:], " \t")
		}
		if value == "" {
			return nil, fmt.Errorf("secret file %s, line %d: want a user, a space and a secret", name, n)
		}
		c := iscsi.Credentials{User: user}
		if c.Secret, err = iscsi.NewSecret(value); err == nil {
			err = c.Check()
		}
		switch {
		case err != nil:
			return nil, fmt.Errorf("secret file %s, line %d: %w", name, n, err)
		case seen[user]:
			return nil, fmt.Errorf("secret file %s, line %d: the user is there twice", name, n)
		}
		seen[user] = true
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("secret file %s: no user in it; want lines of a user, a space and a secret", name)
	}
	return all, nil
}

// read gives a secret file's text.
func read(name string) (string, error) {
	path, checked := name, check
	if id, ok := strings.CutPrefix(name, credential); ok {
		dir := os.Getenv("CREDENTIALS_DIRECTORY")
		switch {
		case dir == "":
			return "", fmt.Errorf("secret %s: systemd gives no credentials here ($CREDENTIALS_DIRECTORY is not set)", name)
		case id == "" || id != filepath.Base(id) || id == "." || id == "..":
			return "", fmt.Errorf("secret %s: want cred:NAME with the name of one credential", name)
		}
		// The directory is this process's alone, and systemd's access lists show as group bits.
		path, checked = filepath.Join(dir, id), checkRegular
	}
	f, err := open(path)
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return "", fmt.Errorf("secret file %s: %w", name, err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat() // of what is open, so that nothing can take its place in between
	if err == nil {
		err = checked(info)
	}
	if err != nil {
		return "", fmt.Errorf("secret file %s: %w", name, err)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("secret file %s cannot be read", name)
	case len(b) > maxFile:
		return "", fmt.Errorf("secret file %s: longer than %d octets", name, maxFile)
	case !utf8.Valid(b):
		return "", fmt.Errorf("secret file %s: not text", name)
	}
	return strings.TrimPrefix(string(b), "\ufeff"), nil
}

func checkRegular(info os.FileInfo) error {
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	return nil
}

// Ask asks for a secret on the terminal, without showing what is typed.
func Ask(what string) (iscsi.Secret, error) {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		if !term.IsTerminal(int(os.Stdin.Fd())) {
			return iscsi.Secret{}, fmt.Errorf("there is no terminal to ask for the %s; name a file instead", what)
		}
		tty = os.Stdin
	} else {
		defer func() { _ = tty.Close() }()
	}
	fmt.Fprintf(os.Stderr, "%s: ", what)
	b, err := term.ReadPassword(int(tty.Fd()))
	fmt.Fprintln(os.Stderr)
	if err != nil {
		return iscsi.Secret{}, fmt.Errorf("asking for the %s: %w", what, err)
	}
	s, err := iscsi.NewSecret(string(b))
	if err != nil {
		return s, fmt.Errorf("%s: %w", what, err)
	}
	return s, nil
}
