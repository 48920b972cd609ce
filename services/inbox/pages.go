package inbox

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"

	"weir/internal/fault"
	"weir/internal/journal"
)

// A page token says behind what a page begins, and is bound to the list that it
// came from: its first bytes are a hash of that. It holds no secret.
const boundBytes = 8

func boundTo(list string, key journal.Key) []byte {
	sum := sha256.Sum256([]byte(list + "\x00" + key.String()))
	return sum[:boundBytes]
}

func pageToken(list string, key journal.Key, behind []byte) string {
	return base64.RawURLEncoding.EncodeToString(append(boundTo(list, key), behind...))
}

// parsePageToken gives what pageToken was given, size bytes of it.
func parsePageToken(list string, key journal.Key, token string, size int) ([]byte, error) {
	data, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(data) != boundBytes+size || string(data[:boundBytes]) != string(boundTo(list, key)) {
		return nil, fault.BadPageToken()
	}
	return data[boundBytes:], nil
}

// Pages of what waits are by place, and those of the dead by when they died.
const (
	listWaiting = "waiting"
	listDead    = "dead"
	placeBytes  = 1 + 4 + 8 + 4
	momentBytes = 8 + 8 + 4
)

func placeToken(key journal.Key, p place) string {
	data := []byte{0}
	if p.interrupts {
		data[0] = 1
	}
	data = binary.BigEndian.AppendUint32(data, uint32(p.priority))
	return pageToken(listWaiting, key, appendArrival(data, p.arrival))
}

// parsePlaceToken gives the front for no token.
func parsePlaceToken(key journal.Key, token string) (place, error) {
	if token == "" {
		return front, nil
	}
	data, err := parsePageToken(listWaiting, key, token, placeBytes)
	if err != nil {
		return place{}, err
	}
	return place{data[0] == 1, int32(binary.BigEndian.Uint32(data[1:])), arrivalOf(data[5:])}, nil
}

func momentToken(key journal.Key, m moment) string {
	data := binary.BigEndian.AppendUint64(nil, uint64(m.at.UnixNano()))
	return pageToken(listDead, key, appendArrival(data, m.arrival))
}

// parseMomentToken gives latest for no token.
func parseMomentToken(key journal.Key, token string) (moment, error) {
	if token == "" {
		return latest, nil
	}
	data, err := parsePageToken(listDead, key, token, momentBytes)
	if err != nil {
		return moment{}, err
	}
	return moment{time.Unix(0, int64(binary.BigEndian.Uint64(data))).UTC(), arrivalOf(data[8:])}, nil
}

func appendArrival(data []byte, a arrival) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(data, a.Sequence), uint32(a.Index))
}

func arrivalOf(data []byte) arrival {
	return arrival{binary.BigEndian.Uint64(data), int32(binary.BigEndian.Uint32(data[8:]))}
}
