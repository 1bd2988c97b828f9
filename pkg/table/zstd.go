package table

import (
	"sync"

	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/klauspost/compress/zstd"
)

// maxPageBytes is the most that one page may hold, decompressed. Ours end near
// 1 MiB, or with the value that crosses it.
const maxPageBytes = 256 << 20

// boundedZstd is arrow's codec with a limit on what a page decompresses to.
// Without it a few hostile bytes can ask for 64 GiB, and running out of memory
// is not a panic that one recovers from.
type boundedZstd struct {
	compress.Codec
	decoder func() *zstd.Decoder
}

// The codec table of arrow is global and has no lock, and init is where its
// authors say to change it.
func init() { //nolint:gochecknoinits // the only way to bound decompression, see above
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

// EncodeLevel compresses with the encoder that all share: the same bytes as those of
// the pool that arrow has for it. What a pool holds is made anew whenever it likes,
// and an encoder that was made in a bubble of testing/synctest may not leave it.
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
