// Package serve is everything around a gRPC server that all of weir's services share:
// listening, identity, limits, telemetry, health and an orderly end. A service adds
// its methods and its background work.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/identity"
)

// Config is what every service can be told. Services embed it; the tags are for kong,
// whose variable "listen" gives each service a port of its own.
type Config struct {
	Listen string `help:"Address to serve gRPC on." default:"${listen=127.0.0.1:7070}" placeholder:"HOST:PORT"`
	HTTP   string `name:"http" help:"Address to serve /metrics and /healthz on; none by default." placeholder:"HOST:PORT"`

	JWKS         string `name:"jwks" help:"File of the keys that sign tokens (JSON Web Key Set)." placeholder:"FILE"`
	Issuer       string `help:"OpenID Connect issuer of tokens, instead of --jwks." placeholder:"URL"`
	Audience     string `help:"Audience a token must be meant for." default:"weir"`
	Standing     string `help:"File of the subjects that are disabled (JSON)." placeholder:"FILE"`
	SPIFFEScopes string `name:"spiffe-scopes" help:"File of the scopes of services that come with a certificate instead of a token (JSON)." placeholder:"FILE"`

	TLSCert     string `name:"tls-cert" help:"Certificate of this server (PEM)." placeholder:"FILE"`
	TLSKey      string `name:"tls-key" help:"Its private key (PEM)." placeholder:"FILE"`
	TLSClientCA string `name:"tls-client-ca" help:"Authorities whose client certificates are believed (PEM)." placeholder:"FILE"`

	Peer DialConfig `embed:"" prefix:"peer-"`

	OpenReflection bool          `help:"Let anybody list the methods, so that grpcurl needs no token for it."`
	ShutdownGrace  time.Duration `help:"How long calls under way may take to finish." default:"10s"`
	LogLevel       slog.Level    `help:"Least level to log: debug, info, warn or error." default:"info"`

	Listener net.Listener         `kong:"-"` // serves here instead of on Listen; Run closes it
	Registry *prometheus.Registry `kong:"-"` // where the metrics go; a new one if nil
	Logger   *slog.Logger         `kong:"-"` // JSON to stderr if nil
}

// Validate reports the first setting that can't work, by its flag. Kong calls it.
func (c *Config) Validate() error {
	if c.Listener == nil {
		if _, _, err := net.SplitHostPort(c.Listen); err != nil {
			return fmt.Errorf("--listen: want HOST:PORT: %w", err)
		}
	}
	if c.HTTP != "" {
		if _, _, err := net.SplitHostPort(c.HTTP); err != nil {
			return fmt.Errorf("--http: want HOST:PORT: %w", err)
		}
	}
	switch {
	case (c.JWKS == "") == (c.Issuer == ""):
		return errors.New("--jwks or --issuer: want one of the two, to know whose tokens to believe")
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("--tls-cert and --tls-key: want both or neither")
	case c.TLSClientCA != "" && c.TLSCert == "":
		return errors.New("--tls-client-ca: needs --tls-cert")
	case c.SPIFFEScopes != "" && c.TLSClientCA == "":
		return errors.New("--spiffe-scopes: needs --tls-client-ca, or no certificate is believed")
	case c.ShutdownGrace < 0:
		return errors.New("--shutdown-grace: must not be negative")
	}
	return c.Peer.Validate()
}

// Log is the logger that Run uses too.
func (c *Config) Log() *slog.Logger {
	if c.Logger != nil {
		return c.Logger
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: c.LogLevel}))
}

// withDefaults gives a Config built in Go the values that kong's defaults give one
// built from flags.
func (c Config) withDefaults() Config {
	c.Logger = c.Log()
	if c.Audience == "" {
		c.Audience = "weir"
	}
	if c.ShutdownGrace == 0 {
		c.ShutdownGrace = 10 * time.Second
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	return c
}

// guard reads what identity needs. Whatever is missing or malformed keeps the service
// from starting: it would only refuse everybody, or worse, nobody.
func (c *Config) guard(ctx context.Context, methods identity.Table) (*identity.Guard, error) {
	var (
		g    = &identity.Guard{Methods: methods}
		keys identity.Keys
		err  error
	)
	if c.OpenReflection {
		g.Methods = methods.OpenReflection()
	}
	if c.JWKS != "" {
		keys, err = identity.FileKeys(c.JWKS, c.Logger)
	} else {
		keys, err = identity.OIDCKeys(ctx, c.Issuer)
	}
	if err != nil {
		return nil, err
	}
	g.Verifier = identity.NewVerifier(keys, c.Audience)
	if c.Standing != "" {
		if g.Standing, err = identity.ReadStanding(c.Standing, c.Logger); err != nil {
			return nil, err
		}
	}
	if c.SPIFFEScopes != "" {
		if g.Peers, err = identity.ReadPeers(c.SPIFFEScopes, c.Logger); err != nil {
			return nil, err
		}
	}
	return g, nil
}
