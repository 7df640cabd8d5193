//! What every weight file has to satisfy, whatever its format.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use ebb_kernels::bf16;
use ebb_kernels::model::{Mlp, ModelSpec, TensorName};
use ebb_kernels::weight_formats::{Codes, PackedRows, WeightFormat};

use super::error::Refusal;
use super::families::StoredTensor;
use super::gguf::{GgmlType, dequantize};

/// The most layers accepted; the deepest published models have some 130.
const MAX_LAYERS: usize = 4096;

/// The most experts accepted, of all layers together; the largest published models have some
/// 25,000.
const MAX_EXPERTS: usize = 1 << 16;

/// The longest context accepted, so that a position always fits 32 bits.
const MAX_POSITIONS: usize = 1 << 30;

/// A number of layers that a configuration names, before memory is taken for that many.
pub(super) fn layer_count(layers: usize) -> Result<usize, Refusal> {
    if layers <= MAX_LAYERS {
        return Ok(layers);
    }
    let expected = format!("at most {MAX_LAYERS}");
    Err(Refusal::invalid("the number of layers", layers, expected))
}

/// Checks a spec's dimensions, so that enumerating its tensors is cheap.
pub(super) fn check_spec(spec: ModelSpec) -> Result<ModelSpec, Refusal> {
    if spec.max_positions > MAX_POSITIONS {
        let expected = format!("at most {MAX_POSITIONS}");
        return Err(Refusal::invalid(
            "the context length",
            spec.max_positions,
            expected,
        ));
    }
    spec.validate()?;
    let experts = spec.layers.iter().map(|layer| match &layer.mlp {
        Mlp::Experts(experts) => experts.experts,
        Mlp::Dense { .. } | Mlp::Plain(_) | Mlp::None => 0,
    });
    // Each may have tensors under names of its own.
    let experts: usize = experts.sum();
    if experts > MAX_EXPERTS {
        let expected = format!("at most {MAX_EXPERTS}");
        let field = "the number of experts of all layers";
        return Err(Refusal::invalid(field, experts, expected));
    }
    Ok(spec)
}

/// A weight file's tensor table.
pub(super) trait TensorTable {
    /// How the file stores a tensor.
    fn stored(&self, name: TensorName) -> StoredTensor;
    /// The shape of a tensor under its name in the file, slowest dimension first; of one that is
    /// quantised, which was checked as it was found, the one it stands for.
    fn shape(&self, file_name: &str) -> Option<&[usize]>;
    /// The names of every tensor in the file that is not known to be superfluous.
    fn present(&self) -> Vec<&str>;
}

/// Checks that a file has exactly the tensors of `spec`, in the right shapes.
pub(super) fn check_tensors(spec: &ModelSpec, table: &dyn TensorTable) -> Result<(), Refusal> {
    let mut expected_names = HashSet::new();
    for name in TensorName::all(spec) {
        let stored = table.stored(name);
        for (index, tensor) in stored.names(spec).into_iter().enumerate() {
            let expected = stored.shape_of(spec, index);
            let Some(found) = table.shape(&tensor) else {
                return Err(Refusal::MissingTensor(tensor));
            };
            if !fits(found, &expected) {
                return Err(Refusal::Shape {
                    tensor,
                    found: found.to_vec(),
                    expected,
                });
            }
            expected_names.insert(tensor);
        }
    }
    match table
        .present()
        .into_iter()
        .find(|name| !expected_names.contains(*name))
    {
        Some(unexpected) => Err(Refusal::UnexpectedTensor(unexpected.to_owned())),
        None => Ok(()),
    }
}

/// Whether a tensor of shape `found` is one of shape `expected`: a vector may be stored as a matrix
/// of one row or column, or a matrix of one row as a vector. Rows of what else is turned have
/// another width.
fn fits(found: &[usize], expected: &[usize]) -> bool {
    let rows = |shape: &[usize]| {
        let ones = shape.iter().take_while(|size| **size == 1).count();
        shape[ones..].to_vec()
    };
    let (found, expected) = (rows(found), rows(expected));
    let ones = found.iter().rev().take_while(|size| **size == 1).count();
    found == expected || expected.len() == 1 && found[..found.len() - ones] == expected
}

/// Which tensors of a model lie together in a stored one, and which of those have been read: memory
/// may be let go behind the last.
#[derive(Debug, Default)]
pub(super) struct TensorsInOne {
    /// How many a stored tensor has, where it has several.
    counts: HashMap<String, usize>,
    /// Those that have been read, of stored tensors that have more.
    read: Mutex<HashMap<String, HashSet<TensorName>>>,
}

impl TensorsInOne {
    /// Nothing has been read. `place` names the stored tensor that has one of the model.
    pub(super) fn new(spec: &ModelSpec, place: impl Fn(TensorName) -> String) -> Self {
        let mut counts = HashMap::new();
        for name in TensorName::all(spec) {
            *counts.entry(place(name)).or_insert(0) += 1;
        }
        counts.retain(|_, count| *count > 1);
        Self {
            counts,
            read: Mutex::default(),
        }
    }

    /// Notes that a tensor in a stored one has been read, and tells whether all of it has. What is
    /// read again is counted anew.
    pub(super) fn is_read(&self, name: TensorName, stored: &str) -> bool {
        let Some(count) = self.counts.get(stored) else {
            return true;
        };
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let of_stored = read.entry(stored.to_owned()).or_default();
        of_stored.insert(name);
        let is_read = of_stored.len() == *count;
        if is_read {
            read.remove(stored);
        }
        is_read
    }
}

/// Values decoded at once: enough to be quick, few enough that they are still in the cache when
/// they are checked.
const PART_VALUES: usize = 64 << 10;

/// Fills rows of `width` values with `decode(row, rows)`, some at a time, and refuses values that
/// are not finite.
pub(super) fn fill_rows<E: From<Refusal>>(
    file_name: &str,
    width: usize,
    out: &mut [bf16],
    mut decode: impl FnMut(usize, &mut [bf16]) -> Result<(), E>,
) -> Result<(), E> {
    let rows = (PART_VALUES / width.max(1)).max(1);
    for (part, values) in out.chunks_mut(rows * width.max(1)).enumerate() {
        decode(part * rows, values)?;
        // Without a branch per element, so that the compiler can do many at once.
        const EXPONENT: u16 = 0x7F80;
        let not_finite = values.iter().fold(false, |found, value| {
            found | (value.to_bits() & EXPONENT == EXPONENT)
        });
        if not_finite {
            return Err(Refusal::NotFinite(file_name.to_owned()).into());
        }
    }
    Ok(())
}

/// Fills rows of a tensor that has two of them for a stored vector: rounded to bf16, and what that
/// leaves. `data` is encoded as `kind`.
pub(super) fn fill_halves(
    file_name: &str,
    encoded: (GgmlType, &[u8]),
    first_row: usize,
    out: &mut [bf16],
) -> Result<(), Refusal> {
    split_in_halves(&exact_values(file_name, encoded)?, first_row, out);
    Ok(())
}

/// The values of a vector, which all are finite. `data` is encoded as `kind`.
pub(super) fn exact_values(
    file_name: &str,
    (kind, data): (GgmlType, &[u8]),
) -> Result<Vec<f32>, Refusal> {
    let exact: Vec<f32> = match kind {
        GgmlType::F32 => {
            let numbers = data.as_chunks().0.iter();
            numbers.map(|bytes| f32::from_le_bytes(*bytes)).collect()
        }
        _ => {
            let count = data.len() / kind.block_bytes() * kind.block_elements();
            let mut rounded = vec![bf16::ZERO; count];
            dequantize(kind, data, &mut rounded);
            rounded.iter().map(|value| value.to_f32()).collect()
        }
    };
    match exact.iter().all(|value| value.is_finite()) {
        true => Ok(exact),
        false => Err(Refusal::NotFinite(file_name.to_owned())),
    }
}

/// Fills rows of a tensor that has two of them for a vector of these values, as [`fill_halves`]
/// does.
pub(super) fn split_in_halves(exact: &[f32], first_row: usize, out: &mut [bf16]) {
    for (row, out) in (first_row..).zip(out.chunks_exact_mut(exact.len())) {
        for (out, exact) in out.iter_mut().zip(exact) {
            let rounded = bf16::from_f32(*exact);
            *out = match row {
                0 => rounded,
                _ => bf16::from_f32(exact - rounded.to_f32()),
            };
        }
    }
}

/// Refuses packed rows of `inputs` weights that are not all finite in bf16.
pub(super) fn check_packed(
    file_name: &str,
    format: &WeightFormat,
    inputs: usize,
    rows: &PackedRows<'_>,
) -> Result<(), Refusal> {
    const NAN: u8 = 0x7F;
    let not_finite = || Err(Refusal::NotFinite(file_name.to_owned()));
    // Without a branch per code, so that the compiler can do many at once.
    let has_nan = |part: &[u8]| part.iter().fold(false, |found, c| found | (c & NAN == NAN));
    if format.codes == Codes::E4M3 && rows.codes.chunks(PART_VALUES).any(has_nan) {
        return not_finite();
    }
    let values = format.codes.values();
    let finite = values.iter().filter(|value| value.is_finite());
    let most = finite.fold(0f32, |most, value| most.max(value.abs()));
    let is_finite = |value: f32| bf16::from_f32(value).is_finite();
    let groups = format.groups(inputs);
    for (at, scale) in rows.scales.iter().enumerate() {
        let offset = rows.offsets.get(at).copied().unwrap_or(0.0);
        if is_finite(scale.abs() * most + offset.abs()) {
            continue;
        }
        // Codes that do not reach the ends may still be finite.
        let row = &rows.codes[at / groups * inputs..][..inputs];
        let mut codes = row.chunks(format.group).nth(at % groups).into_iter();
        let weight = |code: &u8| scale * values[usize::from(*code)] + offset;
        if !codes.all(|codes| codes.iter().all(|code| is_finite(weight(code)))) {
            return not_finite();
        }
    }
    Ok(())
}

/// Values of a row of a tensor; a vector is one row.
pub(super) fn row_width(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use ebb_kernels::model::{LayerTensor, Rope, UniformModel};

    use super::*;

    #[test]
    fn vectors_are_matrices_of_one_row_or_column_and_no_matrix_is_another_turned() {
        for found in [&[64][..], &[1, 64], &[64, 1], &[64, 1, 1]] {
            assert!(fits(found, &[64]), "{found:?}");
        }
        assert!(fits(&[64], &[1, 64]));
        assert!(fits(&[1], &[1]) && fits(&[1, 1], &[1]) && fits(&[1], &[1, 1]));
        assert!(fits(&[3, 64, 1], &[3, 64, 1]));
        for (found, expected) in [
            (&[1, 64][..], &[64, 1][..]),
            (&[64], &[64, 1]),
            (&[3, 64], &[3, 64, 1]),
            (&[2, 32], &[64]),
            (&[64, 2], &[64]),
        ] {
            assert!(!fits(found, expected), "{found:?} {expected:?}");
        }
    }

    #[test]
    fn halves_add_up_to_what_is_stored() {
        let exact = [5.4321f32, -0.001_234_5, 0.0];
        let bytes: Vec<u8> = exact.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut out = [bf16::ZERO; 6];
        fill_halves("bias", (GgmlType::F32, &bytes), 0, &mut out).expect("finite");
        for (index, exact) in exact.into_iter().enumerate() {
            let sum = out[index].to_f32() + out[index + 3].to_f32();
            assert!(
                (sum - exact).abs() <= exact.abs() * 2f32.powi(-16),
                "{sum} {exact}"
            );
        }
        let mut rest = [bf16::ZERO; 3];
        fill_halves("bias", (GgmlType::F32, &bytes), 1, &mut rest).expect("finite");
        assert_eq!(rest, out[3..]);
        let nan = f32::NAN.to_le_bytes();
        let refused = fill_halves("bias", (GgmlType::F32, &nan), 0, &mut out[..1]);
        assert!(matches!(refused, Err(Refusal::NotFinite(_))));
    }

    #[test]
    fn what_lies_in_one_tensor_is_read_with_the_last_of_it() {
        use LayerTensor as L;
        let spec = UniformModel {
            hidden: 32,
            layers: 2,
            q_heads: 2,
            kv_heads: 1,
            head_dim: 16,
            intermediate: 32,
            vocab: 16,
            rope: Rope::new(vec![1.0; 8], 1.0),
            max_positions: 64,
            ..UniformModel::default()
        };
        let place = |name| match name {
            TensorName::Layer(layer, L::Q | L::K | L::V) => format!("{layer}.qkv"),
            name => name.to_string(),
        };
        let tensors = TensorsInOne::new(&spec.spec(), place);
        let read = |layer, tensor| {
            let name = TensorName::Layer(layer, tensor);
            tensors.is_read(name, &place(name))
        };
        for again in 0..2 {
            assert!(read(0, L::O), "{again}");
            let found = [L::Q, L::Q, L::V].map(|tensor| read(0, tensor));
            assert_eq!(found, [false; 3], "{again}");
            assert!(!read(1, L::K) && read(0, L::K), "{again}");
        }
    }
}
