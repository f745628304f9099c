package tests

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// row is one line of a conformance table: Section | Requirement | Level | What we do | Test.
type row struct {
	file string
	line int
	cols []string
}

var testRef = regexp.MustCompile("^`?([a-z][a-z0-9/_]*)\\.((?:Test|Fuzz|Benchmark|Example)[A-Za-z0-9_]*)`?$")

// readTables returns the rows of all tables in docs/conformance.
func readTables(t *testing.T) []row {
	t.Helper()
	files, err := filepath.Glob("../docs/conformance/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var rows []row
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		for n, line := range strings.Split(string(b), "\n") {
			if !strings.HasPrefix(line, "|") {
				continue
			}
			cols := strings.Split(strings.Trim(strings.ReplaceAll(line, `\|`, "\x00"), "|"), "|")
			for i := range cols {
				cols[i] = strings.TrimSpace(strings.ReplaceAll(cols[i], "\x00", "|"))
			}
			if cols[0] == "Section" || strings.Trim(cols[0], "-: ") == "" {
				continue
			}
			rows = append(rows, row{filepath.Base(f), n + 1, cols})
		}
	}
	return rows
}

// declaredTests collects "dir.TestName" for every test function of the module.
func declaredTests(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	fset := token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "test/") {
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel("..", filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				found[filepath.ToSlash(dir)+"."+fn.Name.Name] = true
			}
		}
		return nil
	})
	require.NoError(t, err)
	return found
}

// TestConformanceRows reads the conformance tables and fails on a row that is malformed, or whose test
// does not exist. A row that needs no test says why: "n/a: reason".
func TestConformanceRows(t *testing.T) {
	tests := declaredTests(t)
	for _, r := range readTables(t) {
		at := fmt.Sprintf("%s:%d", r.file, r.line)
		if len(r.cols) != 5 {
			t.Errorf("%s: a row has five columns, this one %d", at, len(r.cols))
			continue
		}
		for i, c := range r.cols {
			if c == "" {
				t.Errorf("%s: column %d is empty", at, i+1)
			}
		}
		if reason, ok := strings.CutPrefix(r.cols[4], "n/a:"); ok {
			if strings.TrimSpace(reason) == "" {
				t.Errorf("%s: n/a needs a reason", at)
			}
			continue
		}
		for _, ref := range strings.Split(r.cols[4], ",") {
			m := testRef.FindStringSubmatch(strings.TrimSpace(ref))
			if m == nil {
				t.Errorf("%s: %q names no test", at, strings.TrimSpace(ref))
				continue
			}
			if !tests[m[1]+"."+m[2]] {
				t.Errorf("%s: test %s.%s does not exist", at, m[1], m[2])
			}
		}
	}
}
