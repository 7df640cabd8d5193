//! What every weight file has to satisfy, whatever its format.

use ebb_kernels::bf16;
use ebb_kernels::model::{ModelSpec, TensorName};
use ebb_kernels::weight_formats::{Codes, PackedRows, WeightFormat};

use super::error::Refusal;
use super::families::StoredTensor;

/// The most layers accepted; the deepest published models have some 130.
const MAX_LAYERS: usize = 4096;

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
    Ok(spec)
}

/// A weight file's tensor table.
pub(super) trait TensorTable {
    /// How the file stores a tensor.
    fn stored(&self, name: TensorName) -> StoredTensor;
    /// The shape of a tensor under its name in the file, slowest dimension first.
    fn shape(&self, file_name: &str) -> Option<&[usize]>;
    /// The names of every tensor in the file that is not known to be superfluous.
    fn present(&self) -> Vec<&str>;
}

/// Checks that a file has exactly the tensors of `spec`, in the right shapes.
pub(super) fn check_tensors(spec: &ModelSpec, table: &dyn TensorTable) -> Result<(), Refusal> {
    let mut expected_names = std::collections::HashSet::new();
    for name in TensorName::all(spec) {
        let stored = table.stored(name);
        let Some(found) = table.shape(&stored.name) else {
            return Err(Refusal::MissingTensor(stored.name));
        };
        let expected = stored.shape(spec);
        if found != expected {
            return Err(Refusal::Shape {
                tensor: stored.name,
                found: found.to_vec(),
                expected,
            });
        }
        expected_names.insert(stored.name);
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
