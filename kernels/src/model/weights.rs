//! The interface that a backend loads weights through.

use std::num::NonZero;

use half::bf16;

use super::{ModelSpec, TensorName};
use crate::weight_formats::{PackedRows, WeightFormat};

/// Where a backend's weights come from: a directory, a GGUF file, random numbers.
///
/// Tensors are row-major `[out][in]`, in Hugging Face orientation and half-split RoPE order. A
/// vector is one row.
pub trait WeightSource: Sync {
    /// What can go wrong while reading.
    type Error: std::error::Error + Send + Sync + 'static;

    /// The shape of a tensor, without reading it.
    fn shape(&self, name: TensorName) -> Result<Vec<usize>, Self::Error>;

    /// Reads rows from `first_row` on, rounded to bf16, into all of `out`, which is whole rows
    /// within the tensor. Backends call this from several threads at once.
    fn read_rows(
        &self,
        name: TensorName,
        first_row: usize,
        out: &mut [bf16],
    ) -> Result<(), Self::Error>;

    /// How a tensor is packed, if its rows can be had in that form ([`WeightSource::read_packed`]);
    /// only matrices are. Reads nothing.
    fn packed(&self, name: TensorName) -> Result<Option<WeightFormat>, Self::Error> {
        let _ = name;
        Ok(None)
    }

    /// Reads rows from `first_row` on in the form that [`WeightSource::packed`] names, into all of
    /// `out`, which is whole rows within the tensor. Backends call this from several threads at
    /// once.
    ///
    /// # Panics
    /// Where [`WeightSource::packed`] says that the tensor is not packed, it may.
    fn read_packed(
        &self,
        name: TensorName,
        first_row: usize,
        out: PackedRows<'_>,
    ) -> Result<(), Self::Error> {
        let _ = (first_row, out);
        unreachable!("the {name} tensor is not packed")
    }

    /// Told when a tensor has been read for the last time: memory that holds it may be let go. It
    /// must stay readable, however slowly.
    fn done_reading(&self, name: TensorName) {
        let _ = name;
    }

    /// Whether any tensor of a model is packed.
    fn is_packed(&self, spec: &ModelSpec) -> Result<bool, Self::Error> {
        for name in TensorName::all(spec) {
            if self.packed(name)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads a tensor whole, on as many threads as pay.
    fn load(&self, name: TensorName) -> Result<Vec<bf16>, Self::Error> {
        let (rows, _) = rows_of(&self.shape(name)?);
        self.load_rows(name, 0, rows)
    }

    /// Reads rows of a tensor, on as many threads as pay.
    fn load_rows(
        &self,
        name: TensorName,
        first: usize,
        rows: usize,
    ) -> Result<Vec<bf16>, Self::Error> {
        let (_, width) = rows_of(&self.shape(name)?);
        let mut values = vec![bf16::ZERO; rows * width];
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = (values.len() / MIN_VALUES_PER_THREAD).clamp(1, cores);
        let rows_each = rows.div_ceil(threads).max(1);
        if threads == 1 || rows_each >= rows {
            self.read_rows(name, first, &mut values)?;
            return Ok(values);
        }
        std::thread::scope(|scope| {
            let parts = values.chunks_mut(rows_each * width).enumerate();
            let readers: Vec<_> = parts
                .map(|(part, out)| {
                    scope.spawn(move || self.read_rows(name, first + part * rows_each, out))
                })
                .collect();
            readers.into_iter().try_for_each(|reader| {
                reader
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })?;
        Ok(values)
    }
}

/// Below this many values a tensor is read on the calling thread: starting threads costs more.
const MIN_VALUES_PER_THREAD: usize = 1 << 18;

/// Rows of a tensor of this shape, and values of each.
pub(crate) fn rows_of(shape: &[usize]) -> (usize, usize) {
    match shape {
        [rows @ .., width] => (rows.iter().product(), *width),
        [] => (1, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Value `i` of every tensor is `i`, or an error from row 700 on.
    struct Counting {
        fails: bool,
    }

    impl WeightSource for Counting {
        type Error = std::io::Error;

        fn shape(&self, name: TensorName) -> Result<Vec<usize>, Self::Error> {
            Ok(match name {
                TensorName::FinalNorm => vec![77],
                _ => vec![1003, 1001],
            })
        }

        fn read_rows(
            &self,
            _: TensorName,
            first_row: usize,
            out: &mut [bf16],
        ) -> Result<(), Self::Error> {
            if self.fails && (first_row + out.len() / 1001) > 700 {
                return Err(std::io::Error::other("gone"));
            }
            for (i, value) in out.iter_mut().enumerate() {
                *value = bf16::from_bits((first_row * 1001 + i) as u16);
            }
            Ok(())
        }
    }

    #[test]
    fn a_tensor_read_in_parts_is_the_tensor() {
        let source = Counting { fails: false };
        let big = source.load(TensorName::LmHead).unwrap();
        assert_eq!(big.len(), 1003 * 1001);
        assert!(big.iter().enumerate().all(|(i, v)| v.to_bits() == i as u16));
        assert_eq!(source.load(TensorName::FinalNorm).unwrap().len(), 77);
        let error = Counting { fails: true }.load(TensorName::LmHead);
        assert_eq!(error.unwrap_err().to_string(), "gone");
        assert_eq!(
            [rows_of(&[]), rows_of(&[5]), rows_of(&[2, 3])],
            [(1, 1), (1, 5), (2, 3)]
        );
    }
}
