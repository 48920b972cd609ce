package main

import (
	"fmt"

	"weir/cmd/internal/home"
)

type keysCommand struct {
	Data home.Folder `arg:"" help:"Folder for the key, jwks.json and tokens/; docker-compose.yml reads ./secrets." placeholder:"DIR"`
}

func (c *keysCommand) Run() error {
	unlock, err := c.Data.Open()
	if err != nil {
		return err
	}
	defer unlock()
	fmt.Printf("%s holds the signing key, %s and tokens/, good for 30 days; run it again for new ones\n", c.Data, c.Data.JWKS())
	return nil
}
