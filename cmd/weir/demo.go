package main

type demoCommand struct{}

func (c *demoCommand) Run() error { return nil }
