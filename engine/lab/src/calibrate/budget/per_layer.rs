//! The program as published: the keys and the values of a layer get the same bits (equations 5 to
//! 8).

use ebb_kernels::formats::FormatId;

use super::super::Choice;
use super::{Allocation, BudgetError, allocate};

/// As [`allocate`], of pages `[layer * 2 + side]` whose keys and values have formats of the same
/// nominal bits in each layer: what a layer loses is what its two pages lose. Widths that one side
/// alone has are no choice. [`Allocation::ties`] counts pairs of layers.
///
/// # Errors
/// When the sides share no width, no allocation fits, or the solver fails.
pub fn allocate_per_layer(pages: &[Vec<Choice>], budget: u64) -> Result<Allocation, BudgetError> {
    let layers: Vec<Vec<[Choice; 2]>> = pages.chunks_exact(2).map(common).collect();
    if let Some(layer) = layers.iter().position(Vec::is_empty) {
        let bits = |page: &[Choice]| {
            let bits = page.iter().map(|c| c.format.nominal_bits().to_string());
            bits.collect::<Vec<_>>().join(", ")
        };
        return Err(BudgetError::NoCommonWidth {
            k: bits(&pages[2 * layer]),
            v: bits(&pages[2 * layer + 1]),
        });
    }
    // A layer's choice bears the name of its keys' format.
    let both = |[k, v]: &[Choice; 2]| Choice {
        format: k.format,
        bytes: k.bytes + v.bytes,
        loss: k.loss + v.loss,
    };
    let choices: Vec<Vec<Choice>> = layers
        .iter()
        .map(|layer| layer.iter().map(both).collect())
        .collect();
    let found = allocate(&choices, budget)?;
    let pages = found.choices.iter().zip(&layers).flat_map(|(c, layer)| {
        let of_format = layer.iter().find(|[k, _]| k.format == c.format);
        of_format.copied().unwrap_or(layer[0])
    });
    Ok(Allocation {
        choices: pages.collect(),
        ..found
    })
}

/// The choices of a layer's two pages that have the same bits.
fn common(pages: &[Vec<Choice>]) -> Vec<[Choice; 2]> {
    let width = |format: FormatId| format.nominal_bits();
    let pairs = pages[0].iter().filter_map(|k| {
        let v = pages[1]
            .iter()
            .find(|v| width(v.format) == width(k.format))?;
        Some([rising(&pages[0], *k), rising(&pages[1], *v)])
    });
    pairs.collect()
}

/// The choice, losing no less than those of more bytes: a lower format never counts as better than
/// a higher one.
fn rising(page: &[Choice], choice: Choice) -> Choice {
    let above = page.iter().filter(|c| c.bytes >= choice.bytes);
    Choice {
        loss: above.map(|c| c.loss).fold(choice.loss, f64::max),
        ..choice
    }
}
