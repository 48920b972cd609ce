//go:build !linux

package stage

import "syscall"

// ownGroup puts a process into a group of its own, so that Ctrl-C reaches the demo alone, which
// ends its processes in its own order.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
