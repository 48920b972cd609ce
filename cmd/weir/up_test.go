package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	gatev1 "weir/gen/gate/v1"
	"weir/internal/identity"
	"weir/internal/serve"
)

// What keeps a mesh from starting is one line, and exit code 1. No stack, no usage.
func TestWhatKeepsAMeshFromStarting(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().String()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	badKey := t.TempDir()
	if err := os.WriteFile(filepath.Join(badKey, "key.pem"), []byte("not a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	running := startUp(t)

	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"gate's port in use":         {[]string{"--gate", port}, []string{"--gate", port, "in use"}},
		"registry's port in use":     {[]string{"--registry", port}, []string{"--registry", port, "in use"}},
		"conversation's port in use": {[]string{"--conversation", port}, []string{"--conversation", port, "in use"}},
		"inbox's port in use":        {[]string{"--inbox", port}, []string{"--inbox", port, "in use"}},
		"NATS' port in use":          {[]string{"--nats", port}, []string{"--nats", port, "in use"}},
		"HTTP's port in use":         {[]string{"--http", port}, []string{"--http", port, "in use"}},
		"no address":                 {[]string{"--gate", "nowhere"}, []string{"--gate", "nowhere"}},
		"a locked data folder":       {[]string{"--data", string(running.data)}, []string{string(running.data), "another weir"}},
		"a data folder that is none": {[]string{"--data", file}, []string{file, "not a directory"}},
		"an unreadable key":          {[]string{"--data", badKey}, []string{filepath.Join(badKey, "key.pem"), "not a PEM file"}},
		"no Redis there":             {[]string{"--redis", "redis://" + freeAddresses(t, 1)[0]}, []string{"--redis", "connection refused"}},
		"no URL of a Redis":          {[]string{"--redis", "localhost:6379"}, []string{"--redis", "scheme"}},
		"no such level":              {[]string{"--log-level", "loud"}, []string{"--log-level", "loud"}},
		"no such flag":               {[]string{"--nonsense"}, []string{"--nonsense"}},
	} {
		t.Run(name, func(t *testing.T) {
			// Given twice, a flag's last value counts.
			args := []string{"up", "--data", filepath.Join(t.TempDir(), "data")}
			for _, flag := range []string{"--gate", "--registry", "--conversation", "--inbox", "--nats", "--http"} {
				args = append(args, flag, "127.0.0.1:0")
			}
			stdout, stderr, code := run(t, 20*time.Second, append(args, c.args...)...)
			if code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 {
				t.Errorf("code %d\nstdout: %s\nstderr: %s", code, stdout, stderr)
			}
			for _, word := range c.says {
				if !strings.Contains(stderr, word) {
					t.Errorf("%q is not in: %s", word, stderr)
				}
			}
		})
	}
	if code := running.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("the mesh that had the folder ended with code %d: %s", code, &running.stderr)
	}
}

// A mesh started again goes on where it was, whether it was told to stop or killed. Grants
// are seeded once: those that an administrator took away stay away.
func TestStartingAgainContinues(t *testing.T) {
	u := startUp(t)
	key, err := os.ReadFile(filepath.Join(string(u.data), "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.policies().DeleteGrant(t.Context(), &gatev1.DeleteGrantRequest{GrantId: "first-bob"}); err != nil {
		t.Fatal(err)
	}
	if code := u.stop(os.Interrupt); code != 0 {
		t.Fatalf("Ctrl-C ended it with code %d: %s", code, &u.stderr)
	}
	u.start()
	u.holdsGrants("first-alice")
	u.stop(syscall.SIGKILL)
	u.start()
	u.holdsGrants("first-alice")

	again, err := os.ReadFile(filepath.Join(string(u.data), "key.pem"))
	if err != nil || string(again) != string(key) {
		t.Errorf("the key was replaced (%v)", err)
	}
}

func (u *up) policies() gatev1.PolicyServiceClient {
	u.t.Helper()
	conn, err := serve.Dial(u.addresses.Gate, serve.DialConfig{TokenFile: u.data.Token("admin")})
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { _ = conn.Close() })
	return gatev1.NewPolicyServiceClient(conn)
}

func (u *up) holdsGrants(want ...string) {
	u.t.Helper()
	var ids []string
	for range 100 {
		listed, err := u.policies().ListGrants(u.t.Context(), &gatev1.ListGrantsRequest{})
		if status.Code(err) == codes.Unavailable { // the list is being rebuilt
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if err != nil {
			u.t.Fatal(err)
		}
		for _, grant := range listed.GetGrants() {
			ids = append(ids, grant.GetGrantId())
		}
		break
	}
	if strings.Join(ids, " ") != strings.Join(want, " ") {
		u.t.Errorf("grants are %v, want %v", ids, want)
	}
}

// Nobody reads what isn't theirs.
func TestSecretsAreTheOwnersAlone(t *testing.T) {
	u := startUp(t)
	for path, want := range map[string]os.FileMode{
		"": 0o700, "tokens": 0o700, "key.pem": 0o600,
		"tokens/agent.jwt": 0o600, "tokens/worker.jwt": 0o600, "tokens/approver.jwt": 0o600,
		"tokens/admin.jwt": 0o600, "tokens/operator.jwt": 0o600,
		"tokens/service-gate.jwt": 0o600, "tokens/service-registry.jwt": 0o600,
		"tokens/service-conversation.jwt": 0o600, "tokens/service-inbox.jwt": 0o600,
	} {
		info, err := os.Stat(filepath.Join(string(u.data), path))
		if err != nil {
			t.Error(err)
		} else if info.Mode().Perm() != want {
			t.Errorf("%s: mode %o, want %o", path, info.Mode().Perm(), want)
		}
	}
}

// Health and, on loopback, reflection are for everybody. All else asks who is calling,
// before anything else.
func TestWhatIsOpen(t *testing.T) {
	u := startUp(t)
	closed := 0
	for name, address := range u.addresses.Services() {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		answer, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
		if err != nil || answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("%s: health: %v, %v", name, answer, err)
		}
		for _, service := range listServices(t, conn) {
			for method, rule := range identity.Methods {
				if !strings.HasPrefix(method, "/"+service+"/") || rule.Public || strings.HasPrefix(service, "grpc.reflection") {
					continue
				}
				closed++
				err := conn.Invoke(t.Context(), method, &emptypb.Empty{}, &emptypb.Empty{})
				if status.Code(err) != codes.Unauthenticated {
					t.Errorf("%s: without a token: %v", method, err)
				}
			}
		}
	}
	if closed < 20 {
		t.Errorf("only %d methods were found", closed)
	}
}

// listServices asks reflection, as grpcurl does.
func listServices(t *testing.T, conn *grpc.ClientConn) []string {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, service := range answer.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	return names
}

func TestOneHTTPPortForAllFour(t *testing.T) {
	u := startUp(t)
	if code, body := u.get("/healthz"); code != 200 {
		t.Errorf("/healthz: %d %s", code, body)
	}
	_, metrics := u.get("/metrics")
	for name := range u.addresses.Services() {
		if !strings.Contains(metrics, `service="`+name+`"`) {
			t.Errorf("/metrics has nothing of %s", name)
		}
	}
}
