package strictjson

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// exact says whether a number has the same decimal value in its canonical form.
// That lets 0.1 through, whose canonical text is 0.1 again although the double
// behind it is not a tenth; -0, whose canonical text is 0; and refuses
// 9007199254740993, 1e400 and every digit that a double would drop.
func exact(number string) bool {
	source, ok := parseDecimal(number)
	if !ok {
		return false
	}
	text := jsontext.Value(number)
	if err := text.Canonicalize(); err != nil {
		return false
	}
	canonical, ok := parseDecimal(string(text))
	return ok && source == canonical
}

// decimal is digits × 10^exponent. Without leading and trailing zeros among the
// digits, two are equal exactly if their values are; zero is the zero decimal.
type decimal struct {
	negative bool
	digits   string
	exponent int64
}

// parseDecimal reads a JSON number without ever writing its zeros out, so the
// work is linear in the text whatever the exponent says. It gives false for an
// exponent out of any double's reach, which only zero can have.
func parseDecimal(number string) (decimal, bool) {
	var d decimal
	number, d.negative = strings.CutPrefix(number, "-")
	mantissa, exponent := number, ""
	if i := strings.IndexAny(number, "eE"); i >= 0 {
		mantissa, exponent = number[:i], number[i+1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return decimal{}, true
	}
	d.digits = strings.TrimRight(digits, "0")
	d.exponent = int64(len(digits)-len(d.digits)) - int64(len(fraction))
	if exponent != "" {
		// 32 bits hold any exponent that the digits of a text could make up for.
		e, err := strconv.ParseInt(exponent, 10, 32)
		if err != nil {
			return decimal{}, false
		}
		d.exponent += e
	}
	return d, true
}
