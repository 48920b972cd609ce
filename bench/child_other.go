//go:build !linux

package main

import "os/exec"

func dieWithParent(*exec.Cmd) {}

// runAs leaves cmd with the user that bench runs as. If that is root, postgres
// says itself that it won't.
func runAs(*exec.Cmd, uint32, uint32) {}
