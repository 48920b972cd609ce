package serve

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"weir/internal/identity/watched"
)

// serverTLS takes client certificates where there are any, and leaves it to identity
// whether one is enough.
func (c *Config) serverTLS() (credentials.TransportCredentials, error) {
	if c.TLSCert == "" {
		return insecure.NewCredentials(), nil
	}
	pair, err := keyPair(c.TLSCert, c.TLSKey, c.Logger)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert: %w", err)
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return pair.Get().Value, nil
		},
	}
	if c.TLSClientCA != "" {
		config.ClientAuth = tls.VerifyClientCertIfGiven
		if config.ClientCAs, err = authorities(c.TLSClientCA); err != nil {
			return nil, fmt.Errorf("--tls-client-ca: %w", err)
		}
	}
	return credentials.NewTLS(config), nil
}

// clientTLS verifies the peer by the system's authorities if no other are named.
func (c *DialConfig) clientTLS() (credentials.TransportCredentials, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS13}
	var err error
	if c.CA != "" {
		if config.RootCAs, err = authorities(c.CA); err != nil {
			return nil, fmt.Errorf("--peer-ca: %w", err)
		}
	}
	if c.Cert != "" {
		pair, err := keyPair(c.Cert, c.Key, slog.Default())
		if err != nil {
			return nil, fmt.Errorf("--peer-cert: %w", err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return pair.Get().Value, nil
		}
	}
	return credentials.NewTLS(config), nil
}

// keyPair follows the renewals of a certificate, which for SPIFFE come by the hour.
// While its two files don't belong together, in the middle of one, the old pair serves.
func keyPair(certFile, keyFile string, log *slog.Logger) (*watched.File[*tls.Certificate], error) {
	return watched.Open(certFile, log, time.Now, func(cert []byte) (*tls.Certificate, error) {
		key, err := os.ReadFile(keyFile)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(cert, key)
		return &pair, err
	})
}

func authorities(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, errors.New(file + ": no certificate in it")
	}
	return pool, nil
}
