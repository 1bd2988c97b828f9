package parquetfile

import (
	"sync"

	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/klauspost/compress/zstd"
)

// maxPageBytes is the maximum size of a decompressed page. This build ends a page as soon as it has more than 1 MiB,
// after a whole value.
const maxPageBytes = 256 << 20

// boundedZstd is arrow's codec with a limit on the size of a decompressed page. Without the limit, decompressing a
// few hostile bytes could allocate 64 GiB, and a process cannot recover from running out of memory.
type boundedZstd struct {
	compress.Codec
	decoder func() *zstd.Decoder
}

// init replaces arrow's codec. The codec table is global and has no lock; its documentation says to change it in
// init.
func init() { //nolint:gochecknoinits // the only way to limit decompression
	codec, err := compress.GetCodec(compress.Codecs.Zstd)
	if err != nil {
		panic(err)
	}
	compress.RegisterCodec(compress.Codecs.Zstd, boundedZstd{Codec: codec, decoder: sync.OnceValue(newDecoder)})
}

func newDecoder() *zstd.Decoder {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxPageBytes))
	if err != nil {
		panic(err)
	}
	return decoder
}

// EncodeLevel compresses at the default level with one shared encoder, which produces the
// same bytes as arrow's pool of encoders. The pool may create an encoder at any time, also in a testing/synctest
// bubble, and such an encoder must not be used outside the bubble.
func (c boundedZstd) EncodeLevel(dst, src []byte, level int) []byte {
	if level == compress.DefaultCompressionLevel {
		return c.Encode(dst, src)
	}
	return c.Codec.EncodeLevel(dst, src, level)
}

// Decode implements [compress.Codec].
func (c boundedZstd) Decode(dst, src []byte) []byte {
	decoded, err := c.DecodeWithError(dst, src)
	if err != nil {
		panic(err)
	}
	return decoded
}

// DecodeWithError decompresses src into dst.
func (c boundedZstd) DecodeWithError(dst, src []byte) ([]byte, error) {
	return c.decoder().DecodeAll(src, dst[:0])
}
