package service

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// KeysFile is the name of the file of signing keys in a state folder.
const KeysFile = "keys.json"

// storedKeys is the file format of a keyring; secrets are in base64.
type storedKeys struct {
	Current string            `json:"current"`
	Secrets map[string]string `json:"secrets"`
}

// ReadKeys reads signing keys from a file: {"current": id, "secrets": {id: base64}}.
func ReadKeys(path string) (contract.Keyring, error) {
	data, err := os.ReadFile(path) //nolint:gosec // the operator chooses the path
	if err != nil {
		return contract.Keyring{}, fmt.Errorf("read signing keys: %w", err)
	}
	var stored storedKeys
	if err := json.Unmarshal(data, &stored); err != nil {
		return contract.Keyring{}, fmt.Errorf("read signing keys in %s: %w; remove the file to create new keys", path, err)
	}
	keys := contract.Keyring{Current: stored.Current, Secrets: map[string][]byte{}}
	for id, secret := range stored.Secrets {
		if keys.Secrets[id], err = base64.StdEncoding.DecodeString(secret); err != nil {
			return contract.Keyring{}, fmt.Errorf("read signing key %s in %s: %w; remove the file to create new keys", id, path, err)
		}
	}
	if err := keys.Validate(); err != nil {
		return contract.Keyring{}, fmt.Errorf("read signing keys in %s: %w; remove the file to create new keys", path, err)
	}
	return keys, nil
}

// OpenKeys reads the signing keys in a file, which it creates if absent. If several processes
// create it at once, one wins, and all return its keys.
func OpenKeys(path string) (contract.Keyring, error) {
	keys, err := ReadKeys(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return keys, err
	}
	if err := makeKeys(path); err != nil {
		return contract.Keyring{}, fmt.Errorf("create signing keys: %w", err)
	}
	return ReadKeys(path)
}

// makeKeys creates a file of keys unless it exists. The file appears atomically.
func makeKeys(path string) (err error) {
	secret := make([]byte, contract.MinSecret)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	const id = "local"
	data, err := json.Marshal(storedKeys{Current: id, Secrets: map[string]string{id: base64.StdEncoding.EncodeToString(secret)}})
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), KeysFile+".*") // readable by its owner only
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(temp.Name())) }()
	_, err = temp.Write(data)
	if err = errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return err
	}
	if err := os.Link(temp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
