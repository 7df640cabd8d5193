// The page formats, one line each: README.md says how to add one. mod.rs and ../../build.rs include
// this file, each with a macro of its own.
//
// A line is: variant, folder (also the format's name on disk), and what a GPU does with its pages:
// the kernel of cuda/formats that writes them, then how decode attention reads them:
//
//   rows       as 16-bit rows
//   codes B    as codes of B bits
//   boosted    as 2-bit codes, some channels at 4 bits
//   polar      as pairs of angle and radius
//   scratch    not at all: they are dequantised to 16-bit rows before
//
// `clips X` in their place: records are laid out as X's, their 2-bit groups clipped.
//
// A ladder goes down from line to line. In brackets stand folders that formats of a group share.
formats! {
    serving [] {
        F16                f16:           transcode rows,
        Int8               int8:          transcode codes 8,
        Int4               int4:          transcode codes 4,
        Kitty25c           kitty25c:      clips Kitty25,
        Kitty12c           kitty12c:      clips Kitty12,
        Int2c              int2c:         clips Int2,
        // The same without clipping, the papers' own: a ladder of their own below int4.
        Kitty25            kitty25:       transcode boosted,
        Kitty12            kitty12:       transcode boosted,
        Int2               int2:          transcode codes 2,
        // Static formats.
        Int3               int3:          transcode codes 3,
    }
    papers [grouped, kitty_page, polar, reranked, shifted] {
        Int2g32            int2g32:       encode scratch,
        Kvmix11            kvmix11:       encode scratch,
        Int4g32            int4g32:       encode scratch,
        Polar44            polar44:       encode polar,
        Polar42            polar42:       encode polar,
        Polar44Grid        polar44grid:   encode polar,
        Polar44G64         polar44g64:    encode scratch,
        Polar42G64         polar42g64:    encode scratch,
        Polar44G128        polar44g128:   encode scratch,
        // Keys per token, a ladder of their own.
        Int8t              int8t:         transcode scratch,
        Int4t              int4t:         transcode scratch,
        Int2t              int2t:         transcode scratch,
        // Static formats.
        Kitty25Page        kitty25page:   encode scratch,
        Kitty12Page        kitty12page:   encode scratch,
        Kitty25Sink32      kitty25s32:    encode scratch,
        Int2Sink32         int2s32:       encode scratch,
        Kitty25Top         kitty25top:    encode scratch,
        Kitty12Top         kitty12top:    encode scratch,
        Kitty25Variance    kitty25var:    encode scratch,
        Kitty12Variance    kitty12var:    encode scratch,
        Kitty25Random      kitty25rnd:    encode scratch,
        Kitty12Random      kitty12rnd:    encode scratch,
        Int4Direct         int4direct:    encode scratch,
        Int2Direct         int2direct:    encode scratch,
        Int4Modified       int4modified:  encode scratch,
        Int2Modified       int2modified:  encode scratch,
        Int4tDirect        int4tdirect:   encode scratch,
        Int2tDirect        int2tdirect:   encode scratch,
        Int4tModified      int4tmodified: encode scratch,
        Int2tModified      int2tmodified: encode scratch,
    }
}
