// Package gcsfake serves the part of the JSON API of Google Cloud Storage that package
// gcsblob uses, on top of any [blob.Store]. It maps the store's errors to the statuses of
// the service. It answers an unknown request with 501 and the request's URL.
package gcsfake

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/internal/cloudblob"
	"github.com/servo-orchestration/servo/pkg/blob"
)

// Server serves one bucket.
type Server struct {
	Bucket string
	Store  blob.Store
	// OnFinalize is called with each object that was written, before its writer gets the
	// answer. It may be nil.
	OnFinalize func(blob.Object)
}

const (
	objectPath = "/storage/v1/b/{bucket}/o"
	// pageSize is the maximum number of objects on a page of a listing.
	pageSize = 1000
)

// Handler serves the API.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /upload"+objectPath, s.upload)
	mux.HandleFunc("GET "+objectPath, s.list)
	mux.HandleFunc("GET "+objectPath+"/{object}", s.get)
	mux.HandleFunc("DELETE "+objectPath+"/{object}", s.delete)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		problem(w, http.StatusNotImplemented, r.Method+" "+r.URL.String())
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, rest, ok := strings.Cut(r.URL.Path, "/storage/v1/b/"); ok && strings.Split(rest, "/")[0] != s.Bucket {
			problem(w, http.StatusNotFound, "The specified bucket does not exist.")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// resource is an object in the JSON form of the API.
type resource struct {
	Kind           string `json:"kind"`
	Bucket         string `json:"bucket"`
	Name           string `json:"name"`
	Generation     string `json:"generation"`
	Metageneration string `json:"metageneration"`
	Size           string `json:"size"`
	CRC32C         string `json:"crc32c"`
	TimeCreated    string `json:"timeCreated"` //nolint:tagliatelle // name in the API
	Updated        string `json:"updated"`
}

func (s *Server) resource(o blob.Object) resource {
	at := o.Updated.UTC().Format(time.RFC3339Nano)
	return resource{
		Kind: "storage#object", Bucket: s.Bucket, Name: o.Key, Generation: strconv.FormatInt(o.Version, 10), Metageneration: "1",
		Size: strconv.FormatInt(o.Size, 10), CRC32C: checksum(o.CRC32C), TimeCreated: at, Updated: at,
	}
}

func checksum(crc uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc))
}

// upload accepts an object in one request: metadata and content.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	if kind := r.URL.Query().Get("uploadType"); kind != "multipart" {
		problem(w, http.StatusNotImplemented, "unsupported upload type "+kind)
		return
	}
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		problem(w, http.StatusBadRequest, err.Error())
		return
	}
	var meta struct{ Name, CRC32C string }
	data, err := parts(multipart.NewReader(r.Body, params["boundary"]), &meta)
	if err != nil {
		problem(w, http.StatusBadRequest, err.Error())
		return
	}
	if meta.CRC32C != "" && meta.CRC32C != checksum(blob.CRC32C(data)) {
		problem(w, http.StatusBadRequest, "Provided CRC32C does not match the content.")
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil { // an error means that the upload is incomplete
		problem(w, http.StatusBadRequest, err.Error())
		return
	}
	object, err := s.write(r, meta.Name, data)
	if err != nil {
		fail(w, err)
		return
	}
	if s.OnFinalize != nil {
		s.OnFinalize(object)
	}
	answer(w, s.resource(object))
}

// parts reads a complete upload: metadata, content, and the end of the message.
func parts(m *multipart.Reader, meta any) ([]byte, error) {
	head, err := m.NextPart()
	if err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	if err := json.NewDecoder(head).Decode(meta); err != nil {
		return nil, fmt.Errorf("decode metadata: %w", err)
	}
	content, err := m.NextPart()
	if err != nil {
		return nil, fmt.Errorf("read content: %w", err)
	}
	data, err := io.ReadAll(content)
	if err != nil {
		return nil, fmt.Errorf("read content: %w", err)
	}
	if _, err := m.NextPart(); !errors.Is(err, io.EOF) {
		return nil, errors.Join(errors.New("the message does not end after the content"), err)
	}
	return data, nil
}

func (s *Server) write(r *http.Request, key string, data []byte) (blob.Object, error) {
	condition, err := number(r, "ifGenerationMatch")
	switch {
	case err != nil:
		return blob.Object{}, err
	case condition == nil:
		return s.Store.Put(r.Context(), key, data)
	case *condition == 0:
		return s.Store.Create(r.Context(), key, data)
	default:
		return s.Store.Replace(r.Context(), key, data, *condition)
	}
}

// number returns a query parameter, or nil if it is absent.
func number(r *http.Request, name string) (*int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return nil, nil //nolint:nilnil // an absent parameter is not an error
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", blob.ErrInvalid, name, err)
	}
	return &n, nil
}

// unmet answers the request and returns true if the object does not meet the request's
// conditions.
func unmet(w http.ResponseWriter, r *http.Request, o blob.Object) bool {
	match, err := number(r, "ifGenerationMatch")
	other, err2 := number(r, "ifGenerationNotMatch")
	of, err3 := number(r, "generation")
	switch {
	case errors.Join(err, err2, err3) != nil:
		fail(w, errors.Join(err, err2, err3))
	case of != nil && *of != o.Version:
		fail(w, blob.ErrNotFound) // only the newest generation exists
	case match != nil && *match != o.Version:
		fail(w, blob.ErrMismatch)
	case other != nil && *other == o.Version:
		w.WriteHeader(http.StatusNotModified)
	default:
		return false
	}
	return true
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	key := r.PathValue("object")
	if r.URL.Query().Get("alt") != "media" {
		object, err := s.Store.Head(r.Context(), key)
		if err == nil && object.CRC32C == 0 { // the service always returns a checksum
			_, object, err = s.Store.Get(r.Context(), key)
		}
		if err != nil {
			fail(w, err)
		} else if !unmet(w, r, object) {
			answer(w, s.resource(object))
		}
		return
	}
	data, object, err := s.Store.Get(r.Context(), key)
	if err != nil {
		fail(w, err)
		return
	}
	if unmet(w, r, object) {
		return
	}
	w.Header().Set("X-Goog-Generation", strconv.FormatInt(object.Version, 10))
	w.Header().Set("X-Goog-Metageneration", "1")
	w.Header().Set("X-Goog-Hash", "crc32c="+checksum(object.CRC32C))
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", object.Updated, bytes.NewReader(data))
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	from := query.Get("startOffset")
	after, err := base64.RawURLEncoding.DecodeString(query.Get("pageToken"))
	if err != nil {
		problem(w, http.StatusBadRequest, "Invalid page token.")
		return
	}
	size := pageSize
	if n, err := strconv.Atoi(query.Get("maxResults")); err == nil && n > 0 {
		size = min(n, pageSize)
	}
	var page struct {
		Kind  string     `json:"kind"`
		Next  string     `json:"nextPageToken,omitempty"` //nolint:tagliatelle // name in the API
		Items []resource `json:"items,omitempty"`
	}
	page.Kind = "storage#objects"
	opts := blob.ListOptions{Prefix: query.Get("prefix"), StartAfter: string(after)}
	if opts.StartAfter == "" && from != "" {
		// In the service, startOffset is inclusive.
		if o, err := s.Store.Head(r.Context(), from); err == nil && strings.HasPrefix(from, opts.Prefix) {
			page.Items = append(page.Items, s.resource(o))
		}
		opts.StartAfter = from
	}
	for o, err := range s.Store.List(r.Context(), opts) {
		if err != nil {
			fail(w, err)
			return
		}
		if len(page.Items) == size {
			page.Next = base64.RawURLEncoding.EncodeToString([]byte(page.Items[size-1].Name))
			break
		}
		page.Items = append(page.Items, s.resource(o))
	}
	answer(w, page)
}

func (s *Server) delete(w http.ResponseWriter, r *http.Request) {
	key := r.PathValue("object")
	object, err := s.Store.Head(r.Context(), key)
	if err == nil && unmet(w, r, object) {
		return
	}
	if err == nil {
		err = s.Store.Delete(r.Context(), key)
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func answer(w http.ResponseWriter, value any) { respond(w, http.StatusOK, value) }

func respond(w http.ResponseWriter, status int, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(status)
	_, _ = w.Write(data) // on an error, the client has disconnected
}

// fail answers with the status that Cloud Storage returns for the same error.
func fail(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	switch {
	case errors.Is(err, blob.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, blob.ErrExists), errors.Is(err, blob.ErrMismatch):
		status = http.StatusPreconditionFailed
	case errors.Is(err, cloudblob.ErrTooFast):
		status = http.StatusTooManyRequests
	case errors.Is(err, blob.ErrInvalid):
		status = http.StatusBadRequest
	}
	problem(w, status, err.Error())
}

func problem(w http.ResponseWriter, status int, message string) {
	respond(w, status, map[string]any{"error": map[string]any{"code": status, "message": message}})
}
