//! What the registry says of a format on a GPU.

use super::FormatId;

/// A line of the registry.
#[derive(Debug, Clone, Copy)]
pub(super) enum Entry {
    Own(Writer, Reader),
    Clips(FormatId),
}

/// The kernel of `cuda/formats` that writes pages of a format, from 16-bit ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    /// `transcode.cu`, through 8-bit codes or straight.
    Transcode,
    /// `encode.cu`.
    Encode,
}

/// How decode attention reads pages of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Rows,
    Codes,
    Polar,
    /// It does not: they are dequantised to 16-bit rows before.
    Scratch,
}

/// Turns the words of a line into an [`Entry`].
macro_rules! entry {
    (clips $format:ident) => {
        gpu::Entry::Clips(FormatId::$format)
    };
    (transcode $($reader:tt)+) => {
        gpu::Entry::Own(gpu::Writer::Transcode, gpu::reader!($($reader)+))
    };
    (encode $($reader:tt)+) => {
        gpu::Entry::Own(gpu::Writer::Encode, gpu::reader!($($reader)+))
    };
}
pub(super) use entry;

macro_rules! reader {
    (rows) => {
        gpu::Reader::Rows
    };
    (codes $bits:literal) => {
        gpu::Reader::Codes
    };
    (boosted) => {
        gpu::Reader::Codes
    };
    (polar) => {
        gpu::Reader::Polar
    };
    (scratch) => {
        gpu::Reader::Scratch
    };
}
pub(super) use reader;

impl FormatId {
    /// The format whose records are laid out as this one's.
    const fn layout(self) -> (FormatId, Writer, Reader) {
        match self.on_gpu() {
            Entry::Own(writer, reader) => (self, writer, reader),
            Entry::Clips(other) => match other.on_gpu() {
                Entry::Own(writer, reader) => (other, writer, reader),
                Entry::Clips(_) => panic!("a format that clips has codes of its own"),
            },
        }
    }

    /// Its number on the device, `ebb::PageFormat`: formats that clip have those of the others.
    pub(crate) const fn gpu_number(self) -> u32 {
        let (layout, ..) = self.layout();
        let (mut number, mut i) = (0, 0);
        while FormatId::ALL[i] as usize != layout as usize {
            if let Entry::Own(..) = FormatId::ALL[i].on_gpu() {
                number += 1;
            }
            i += 1;
        }
        number
    }

    /// Whether its 2-bit groups are clipped.
    pub(crate) const fn is_clipped(self) -> bool {
        matches!(self.on_gpu(), Entry::Clips(_))
    }

    pub(crate) const fn gpu_writer(self) -> Writer {
        self.layout().1
    }

    pub(crate) const fn gpu_reader(self) -> Reader {
        self.layout().2
    }
}
