package initiator

import (
	"context"

	"goiwarp/iscsi"
)

// Discover asks the portal at cfg.Addr for its targets, in a discovery session of its own (RFC 7143, section 4.3 and appendix C).
// A target that tells no address is at the portal that was asked.
func Discover(ctx context.Context, d iscsi.Dialer, cfg Config) ([]iscsi.TargetInfo, error) {
	cfg.TargetName = ""
	s, err := login(ctx, d, cfg, true)
	if err != nil {
		return nil, err
	}
	t, err := s.Text(ctx, iscsi.Text{{Key: iscsi.KeySendTargets, Value: iscsi.SendTargetsAll}})
	if err != nil {
		s.Close()
		return nil, err
	}
	addr := s.cfg.Addr
	if err := s.Logout(ctx); err != nil {
		s.log.Debug("iscsi discovery session ends without a logout", "portal", addr, "error", err)
	}
	targets, err := iscsi.ParseTargets(t)
	for i := range targets {
		if len(targets[i].Portals) == 0 {
			targets[i].Portals = []iscsi.Portal{{Addr: addr}}
		}
	}
	return targets, err
}
