//! What every page loses at every format.

use std::collections::BTreeMap;

use ebb_kernels::formats::{FormatId, RecordShape};
use ebb_kernels::kv::{KvGeometry, Side};

use super::{Choice, FormatChoices};

/// Losses by page and format, in the method's unit; of 16 bit they are 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Sensitivities {
    geometry: KvGeometry,
    /// `[layer * 2 + side]`.
    pages: Vec<Vec<Choice>>,
}

impl Sensitivities {
    /// Asks `loss` for every one of `choices` below 16 bit that pages of this geometry can have,
    /// and for those of `more` that are legal for the side.
    ///
    /// # Errors
    /// What `loss` fails with.
    pub fn new<E>(
        geometry: KvGeometry,
        choices: &FormatChoices,
        more: &[FormatId],
        mut loss: impl FnMut(usize, Side, FormatId) -> Result<f64, E>,
    ) -> Result<Self, E> {
        let mut pages = Vec::with_capacity(geometry.layers * 2);
        for page in 0..geometry.layers * 2 {
            let (layer, side) = (page / 2, Side::of_page(page));
            let mut page_choices = Vec::new();
            for format in formats(geometry, side, choices, more) {
                page_choices.push(Choice {
                    format,
                    bytes: page_bytes(geometry, side, format).unwrap_or_default(),
                    loss: match format {
                        FormatId::F16 => 0.0,
                        _ => loss(layer, side, format)?,
                    },
                });
            }
            pages.push(page_choices);
        }
        Ok(Self { geometry, pages })
    }

    /// The model's KV geometry.
    pub fn geometry(&self) -> KvGeometry {
        self.geometry
    }

    /// What each page can be, `[layer * 2 + side]`, 16 bit first.
    pub fn pages(&self) -> &[Vec<Choice>] {
        &self.pages
    }

    /// The lowest format of each page.
    pub fn lowest(&self) -> Vec<FormatId> {
        let lowest = |choices: &Vec<Choice>| {
            let least = choices.iter().min_by_key(|c| c.bytes);
            least.map_or(FormatId::F16, |c| c.format)
        };
        self.pages.iter().map(lowest).collect()
    }

    /// The same pages with the formats of `floors` alone.
    pub fn pages_of(&self, floors: &FormatChoices) -> Vec<Vec<Choice>> {
        let of = |(page, choices): (usize, &Vec<Choice>)| {
            let allowed = floors.of(Side::of_page(page));
            let choices = choices.iter().filter(|c| allowed.contains(&c.format));
            choices.copied().collect()
        };
        self.pages.iter().enumerate().map(of).collect()
    }

    /// Losses of a side by format name, one a layer.
    pub fn table(&self, side: Side) -> BTreeMap<String, Vec<f64>> {
        let mut table: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for choices in self.pages.iter().skip(side as usize).step_by(2) {
            for choice in choices.iter().filter(|c| c.format != FormatId::F16) {
                let of_format = table.entry(choice.format.name().to_owned());
                of_format.or_default().push(choice.loss);
            }
        }
        table
    }
}

/// The formats of a side that a geometry has, and of `more` what is legal there and none of them.
pub(super) fn formats(
    geometry: KvGeometry,
    side: Side,
    choices: &FormatChoices,
    more: &[FormatId],
) -> Vec<FormatId> {
    let mut all = choices.of(side).to_vec();
    for format in more {
        if !all.contains(format) {
            all.push(*format);
        }
    }
    all.retain(|f| page_bytes(geometry, side, *f).is_some());
    all
}

/// Bytes of a page, all heads, if there are such pages.
pub(super) fn page_bytes(geometry: KvGeometry, side: Side, format: FormatId) -> Option<u64> {
    let shape = RecordShape {
        side,
        head_dim: geometry.head_dim,
    };
    let record = format.record_bytes(shape).ok()?;
    Some((record * geometry.kv_heads) as u64)
}
