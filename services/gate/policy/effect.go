package policy

import registryv1 "weir/gen/registry/v1"

// Effect says how far an operation reaches.
type Effect uint8

// The zero Effect is WRITE: that is what an unknown one counts as.
const (
	Write Effect = iota
	Read
	Admin
)

const effects = 3

func (e Effect) String() string { return [effects]string{"WRITE", "READ", "ADMIN"}[e] }

// EffectFrom counts what it does not know as WRITE.
func EffectFrom(e registryv1.Effect) Effect {
	switch e {
	case registryv1.Effect_EFFECT_READ:
		return Read
	case registryv1.Effect_EFFECT_ADMIN:
		return Admin
	default:
		return Write
	}
}

// Proto gives the wire form.
func (e Effect) Proto() registryv1.Effect {
	return [effects]registryv1.Effect{registryv1.Effect_EFFECT_WRITE, registryv1.Effect_EFFECT_READ, registryv1.Effect_EFFECT_ADMIN}[e]
}
