package scsi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"goiwarp/iscsi/store"
)

// TestSetReadOnly: writes are refused and taken again as the administrator says, each nexus is told of the change once, and what is
// read-only for another reason stays so.
func TestSetReadOnly(t *testing.T) {
	m, err := store.NewMemory(1 << 20)
	require.NoError(t, err)
	l, err := NewLU(m, LUConfig{})
	require.NoError(t, err)
	n := &Nexus{}
	l.Attach(n)
	_, ok := l.takeAttention(n)
	require.True(t, ok)
	l.SetReadOnly(true)
	l.SetReadOnly(true)
	require.True(t, l.ReadOnly())
	code, count := l.PendingAttention(n)
	require.Equal(t, CodeModeParametersChanged, code)
	require.Equal(t, 1, count)
	_, _ = l.takeAttention(n)
	l.SetReadOnly(false)
	require.False(t, l.ReadOnly())
	_, count = l.PendingAttention(n)
	require.Equal(t, 1, count)

	l, err = NewLU(m, LUConfig{ReadOnly: true})
	require.NoError(t, err)
	l.SetReadOnly(false)
	require.True(t, l.ReadOnly())
}
