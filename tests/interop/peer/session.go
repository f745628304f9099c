package main

import (
	"context"
	"errors"

	"goiwarp/iscsi"
	"goiwarp/iscsi/initiator"
	"goiwarp/iscsi/tcp"
	"goiwarp/iser"
	"goiwarp/rnic"
	"goiwarp/rnic/soft"
)

// session is a session with a target and all that it stands on.
type session struct {
	dev     *soft.Device
	domain  *iser.Domain
	session *initiator.Session
	lun     *initiator.LUN
}

// login opens a session with the URL's target.
func (o options) login(ctx context.Context, url string, noInvalidate bool) (*session, error) {
	u, err := initiator.ParseURL(url)
	if err != nil {
		return nil, err
	}
	s := &session{dev: soft.New(soft.Config{Log: quiet})}
	if s.domain, err = iser.NewDomain(s.dev, iser.DomainConfig{Log: quiet}); err != nil {
		return nil, err
	}
	link := &rnic.LinkOptions{}
	if !o.crc {
		link.CRC = rnic.Off
	}
	var dialer iscsi.Dialer = &iser.Dialer{Domain: s.domain, Config: iser.Config{Link: link, NoSendInvalidate: noInvalidate, Log: quiet}}
	if u.Transport == "iscsi" {
		dialer = &tcp.Dialer{Config: tcp.Config{Log: quiet}}
	}
	if s.session, err = initiator.Login(ctx, dialer, initiator.Config{Addr: u.Portal.String(), TargetName: u.Target, Log: quiet}); err != nil {
		return nil, err
	}
	s.lun = s.session.LUN(u.LUN)
	return s, nil
}

// fact is what the session's connection says of itself.
func (s *session) fact(name string) string {
	for _, f := range s.session.Info().Facts {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// close logs out and gives everything back.
func (s *session) close() error {
	err := s.session.Logout(context.Background())
	s.session.Close()
	return errors.Join(err, s.domain.Close(), s.dev.Close())
}
