// Package gcsblob implements [blob.Store] with a bucket of Google Cloud Storage. This package is
// not a stable API.
//
// The store never retries a conditional write. If the response to the first try was lost, a retry would be refused
// because the object exists, and the caller would believe that another writer had won. Instead, the store reports an
// unknown outcome, and the caller reads the object. Calls that change nothing are retried a few times.
//
// If the environment variable STORAGE_EMULATOR_HOST is set to host:port, the client uses
// that emulator, without credentials.
package gcsblob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/http"
	"strings"
	"time"

	"cloud.google.com/go/storage"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// Scheme is the prefix of the name of a store that is a bucket: gs://BUCKET.
const Scheme = "gs://"

const (
	// callTimeout limits the duration of a call whose object is in memory. After this time, a retry is more likely to
	// succeed than waiting.
	callTimeout = 2 * time.Minute
	// tries is the maximum number of tries of a call that changes nothing.
	tries = 4
)

// Store is a bucket. Create it with [Open].
type Store struct {
	client *storage.Client
	bucket *storage.BucketHandle
	name   string
}

var _ blob.Store = (*Store)(nil)

// probe is the prefix that Open lists. Even accounts with access to only one tenant may list it.
const probe = "wakeups/"

// Open opens the bucket gs://BUCKET with the default credentials of Google's libraries. It lists the bucket to
// verify that it exists: the response to a read does not distinguish a missing bucket from a missing object.
func Open(ctx context.Context, name string, opts ...option.ClientOption) (*Store, error) {
	bucket := strings.TrimSuffix(strings.TrimPrefix(name, Scheme), "/")
	if !strings.HasPrefix(name, Scheme) || bucket == "" || strings.Contains(bucket, "/") {
		return nil, fmt.Errorf("open object store %q: invalid name: write %sBUCKET, without a folder", name, Scheme)
	}
	opts = append([]option.ClientOption{storage.WithJSONReads(), storage.WithDisabledClientMetrics()}, opts...)
	client, err := storage.NewClient(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("open object store %s: %w", name, err)
	}
	client.SetRetry(storage.WithMaxAttempts(tries), storage.WithBackoff(gax.Backoff{Initial: 100 * time.Millisecond, Max: 2 * time.Second, Multiplier: 2})) //nolint:mnd // the fields name the numbers
	s := &Store{client: client, bucket: client.Bucket(bucket), name: Scheme + bucket}
	objects := s.bucket.Objects(ctx, &storage.Query{Prefix: probe})
	objects.PageInfo().MaxSize = 1
	if _, err := objects.Next(); err != nil && !errors.Is(err, iterator.Done) {
		return nil, errors.Join(fmt.Errorf("open object store: %w", s.failed(ctx, "list", "", err, nil)), client.Close())
	}
	return s, nil
}

// Close closes the connections to the store.
func (s *Store) Close() error { return s.client.Close() }

// absent is the condition that no object with the name exists.
var absent = storage.Conditions{DoesNotExist: true}

// Create implements [blob.Store].
func (s *Store) Create(ctx context.Context, key string, data []byte) (blob.Object, error) {
	return s.write(ctx, "create", key, data, s.once(key).If(absent), blob.ErrExists)
}

// Replace implements [blob.Store].
func (s *Store) Replace(ctx context.Context, key string, data []byte, generation int64) (blob.Object, error) {
	condition := absent
	if generation != 0 {
		condition = storage.Conditions{GenerationMatch: generation}
	}
	return s.write(ctx, "replace", key, data, s.once(key).If(condition), blob.ErrMismatch)
}

// Put implements [blob.Store].
func (s *Store) Put(ctx context.Context, key string, data []byte) (blob.Object, error) {
	return s.write(ctx, "put", key, data, s.once(key), nil)
}

// CreateFrom implements [blob.Store]. It streams the content in one request. It buffers nothing, so
// it cannot retry a part of the content.
func (s *Store) CreateFrom(ctx context.Context, key string, r io.Reader) (blob.Object, error) {
	if err := blob.Check(ctx, "create", key); err != nil {
		return blob.Object{}, err
	}
	ctx, abandon := context.WithCancel(ctx)
	defer abandon()
	w := s.once(key).If(absent).NewWriter(ctx)
	w.ChunkSize = 0
	source := &source{r: r}
	_, err := io.Copy(w, source)
	if source.err == nil {
		source.err = ctx.Err() // the source may have ended early because the context ended
	}
	if source.err != nil {
		// Close would end the request normally, as if the content were complete.
		_ = w.CloseWithError(source.err) //nolint:staticcheck // deprecated only for gRPC
		abandon()
		return blob.Object{}, fmt.Errorf("create object %q: read the content: %w", key, source.err)
	}
	if closed := w.Close(); closed != nil || err != nil {
		return blob.Object{}, s.failed(ctx, "create", key, errors.Join(closed, err), blob.ErrExists)
	}
	return describe(w.Attrs()), nil
}

// source is a reader that remembers its error.
type source struct {
	r   io.Reader
	err error
}

// Read implements [io.Reader].
func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// once returns the handle of an object. The client never retries calls with this handle.
func (s *Store) once(key string) *storage.ObjectHandle {
	return s.bucket.Object(key).Retryer(storage.WithPolicy(storage.RetryNever))
}

func (s *Store) write(ctx context.Context, verb, key string, data []byte, o *storage.ObjectHandle, unmet error) (blob.Object, error) {
	if err := blob.Check(ctx, verb, key); err != nil {
		return blob.Object{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	w := o.NewWriter(ctx)
	w.ChunkSize = 0 // send one request, without a buffer of 16 MiB
	w.CRC32C, w.SendCRC32C = blob.CRC32C(data), true
	w.ContentType = "application/octet-stream" // otherwise the client guesses the type from the content
	_, err := io.Copy(w, bytes.NewReader(data))
	if closed := w.Close(); closed != nil || err != nil {
		return blob.Object{}, s.failed(ctx, verb, key, errors.Join(closed, err), unmet)
	}
	return describe(w.Attrs()), nil
}

// Get implements [blob.Store].
func (s *Store) Get(ctx context.Context, key string) ([]byte, blob.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for try := 1; ; try++ {
		r, o, err := s.open(ctx, "get", key)
		if err != nil {
			return nil, blob.Object{}, err
		}
		if err := s.bounded(ctx, key, o.Size); err != nil {
			return nil, blob.Object{}, errors.Join(err, r.Close())
		}
		data, err := io.ReadAll(r) // the reader verifies the checksum at the end
		if err = errors.Join(err, r.Close()); err == nil {
			o.Size, o.CRC32C = int64(len(data)), blob.CRC32C(data)
			return data, o, nil
		}
		if !errors.Is(err, errReplaced) || try == tries {
			return nil, blob.Object{}, s.failed(ctx, "get", key, err, nil)
		}
	}
}

// bounded returns a [*blob.TooLargeError] for an object above the caller's limit. If the response did not contain
// the size, it requests the size.
func (s *Store) bounded(ctx context.Context, key string, size int64) error {
	if size >= 0 || blob.CheckSize(ctx, key, math.MaxInt64) == nil {
		return blob.CheckSize(ctx, key, size)
	}
	described, err := s.Head(ctx, key)
	if err != nil {
		return err
	}
	return blob.CheckSize(ctx, key, described.Size)
}

// Open implements [blob.Store].
func (s *Store) Open(ctx context.Context, key string) (io.ReadCloser, blob.Object, error) {
	r, o, err := s.open(ctx, "open", key)
	if err != nil {
		return nil, blob.Object{}, err
	}
	if o.Size < 0 { // the response did not contain the size
		described, err := s.Head(ctx, key)
		if err == nil && described.Version != o.Version {
			err = fmt.Errorf("open object %q: %w", key, errReplaced)
		}
		if err != nil {
			return nil, blob.Object{}, errors.Join(err, r.Close())
		}
		o.Size = described.Size
	}
	return r, o, nil
}

func (s *Store) open(ctx context.Context, verb, key string) (io.ReadCloser, blob.Object, error) {
	if err := blob.Check(ctx, verb, key); err != nil {
		return nil, blob.Object{}, err
	}
	r, err := s.bucket.Object(key).NewReader(ctx)
	if err != nil {
		return nil, blob.Object{}, s.failed(ctx, verb, key, err, nil)
	}
	// The HTTP header has a time in whole seconds, which is too coarse: leave Updated zero.
	return reader{r}, blob.Object{Key: key, Size: r.Attrs.Size, Version: r.Attrs.Generation, CRC32C: r.Attrs.CRC32C}, nil
}

// errReplaced reports that the content was replaced or deleted while it was read. It does
// not mean that no object exists.
var errReplaced = errors.New("the object was replaced or deleted while it was read")

// reader reads one generation of an object, if necessary over several connections.
type reader struct{ *storage.Reader }

// Read implements [io.Reader].
func (r reader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if errors.Is(err, storage.ErrObjectNotExist) {
		err = errReplaced
	}
	return n, err
}

// Head implements [blob.Store].
func (s *Store) Head(ctx context.Context, key string) (blob.Object, error) {
	if err := blob.Check(ctx, "head", key); err != nil {
		return blob.Object{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	attrs, err := s.bucket.Object(key).Attrs(ctx)
	if err != nil {
		return blob.Object{}, s.failed(ctx, "head", key, err, nil)
	}
	return describe(attrs), nil
}

// clockKey is a key that is never written. Now requests it.
const clockKey = "servo-asks-for-the-time"

// Now implements [blob.Clock] with the Date header of a response. The client exposes the header only for errors, so
// Now requests an object that does not exist. A response that denies access also has the header.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := s.bucket.Object(clockKey).Attrs(ctx)
	if answer := new(googleapi.Error); errors.As(err, &answer) {
		if now, dateErr := http.ParseTime(answer.Header.Get("Date")); dateErr == nil {
			return now, nil
		}
	}
	if err == nil {
		err = errors.New("the object exists: delete it")
	}
	return time.Time{}, s.failed(ctx, "read the time with", clockKey, err, nil)
}

// List implements [blob.Store].
func (s *Store) List(ctx context.Context, opts blob.ListOptions) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(blob.Object{}, fmt.Errorf("list objects %q: %w", opts.Prefix, err))
			return
		}
		q := &storage.Query{Prefix: opts.Prefix, StartOffset: opts.StartAfter, Projection: storage.ProjectionNoACL}
		if err := q.SetAttrSelection([]string{"Name", "Size", "Generation", "CRC32C", "Created"}); err != nil {
			yield(blob.Object{}, fmt.Errorf("list objects %q: %w", opts.Prefix, err))
			return
		}
		objects := s.bucket.Objects(ctx, q)
		for {
			attrs, err := objects.Next()
			switch {
			case errors.Is(err, iterator.Done):
				return
			case err != nil:
				yield(blob.Object{}, s.failed(ctx, "list", opts.Prefix, err, nil))
				return
			case attrs.Name == opts.StartAfter: // the bucket's listing includes StartOffset
			case !yield(describe(attrs), nil):
				return
			}
		}
	}
}

// Delete implements [blob.Store].
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := blob.Check(ctx, "delete", key); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := s.once(key).Delete(ctx)
	if err == nil || errors.Is(err, storage.ErrObjectNotExist) {
		return nil
	}
	return s.failed(ctx, "delete", key, err, nil)
}

// describe converts metadata into an object. Updated is the creation time of the content, because Cloud Storage's own
// Updated also changes with the metadata.
func describe(attrs *storage.ObjectAttrs) blob.Object {
	return blob.Object{Key: attrs.Name, Size: attrs.Size, Version: attrs.Generation, CRC32C: attrs.CRC32C, Updated: attrs.Created}
}

// failed translates an error of the client to an error of the port. unmet is the error for
// a write whose condition did not hold.
func (s *Store) failed(ctx context.Context, verb, key string, err, unmet error) error {
	answer := new(googleapi.Error)
	answered := errors.As(err, &answer)
	switch {
	case answered && answer.Code == http.StatusPreconditionFailed && unmet != nil:
		return fmt.Errorf("%s object %q: %w", verb, key, unmet)
	case errors.Is(err, storage.ErrObjectNotExist):
		return fmt.Errorf("%s object %q: %w", verb, key, blob.ErrNotFound)
	case answered && answer.Code == http.StatusNotFound:
		return fmt.Errorf("%s object %q: no bucket %s, or no permission to see it: %w", verb, key, s.name, err)
	case answered && (answer.Code == http.StatusUnauthorized || answer.Code == http.StatusForbidden):
		return fmt.Errorf("%s object %q in %s: permission denied: grant this account roles/storage.objectUser on the bucket, or the roles in docs/deploy.md: %w", verb, key, s.name, err)
	case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		err = errors.Join(ctx.Err(), err)
	}
	return fmt.Errorf("%s object %q: %w", verb, key, err)
}
