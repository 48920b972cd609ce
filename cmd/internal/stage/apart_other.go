//go:build !linux

package stage

import "syscall"

// apart puts a process into a group of its own, so that Ctrl-C reaches the demo alone, which
// ends its processes in its own order.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
