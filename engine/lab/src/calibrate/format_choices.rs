//! Which formats a calibration chooses from.

use ebb_kernels::formats::{FormatId, ladder, legal_shrink, precision_levels};
use ebb_kernels::kv::Side;

/// Formats of keys and of values, 16 bit first, each of which shrinks to those behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatChoices([Vec<FormatId>; 2]);

impl Default for FormatChoices {
    /// The ladder of each side.
    fn default() -> Self {
        Self([Side::K, Side::V].map(|side| ladder(side).collect()))
    }
}

impl FormatChoices {
    /// 16 bit and these, names with commas between; each side takes those that it can have. Where
    /// formats of keys per token are named, keys take no others.
    ///
    /// # Errors
    /// A sentence that says which name is wrong, or which two formats no page can both take on its
    /// way down.
    pub fn named(names: &str) -> Result<Self, String> {
        let mut wanted = vec![FormatId::F16];
        for name in names.split(',').map(str::trim) {
            let format: FormatId = name.parse().map_err(|e| format!("{e}"))?;
            let is_level = |side| precision_levels(side).any(|r| r == format);
            if !is_level(Side::K) && !is_level(Side::V) {
                return Err(format!(
                    "pages do not shrink to {format} step by step; choose of int8, int4, int2c, \
                     kitty25c, kitty12c or int2, kitty25, kitty12; for keys per token of int8t, \
                     int4t, int2t"
                ));
            }
            wanted.push(format);
        }
        let of_side = |side| {
            let own: Vec<FormatId> = of_one_grouping(side, &wanted).collect();
            let way =
                |a: FormatId, b: FormatId| legal_shrink(a, b, side) || legal_shrink(b, a, side);
            for (index, &a) in own.iter().enumerate() {
                if let Some(b) = own[..index].iter().find(|b| !way(a, **b)) {
                    return Err(format!(
                        "no page shrinks from {b} to {a} or back; name one of them"
                    ));
                }
            }
            match own.len() {
                1 => Err(format!("none of them is for {}", side_name(side))),
                _ => Ok(own),
            }
        };
        Ok(Self([of_side(Side::K)?, of_side(Side::V)?]))
    }

    /// Of these formats the ones named, for the program alone to choose floors from: PM-KVQ's set
    /// B. Pages come down by the others as before.
    ///
    /// # Errors
    /// A sentence that says which name is none of these, or which side is left without.
    pub fn floors(&self, names: &str) -> Result<Self, String> {
        let mut wanted = Vec::new();
        for name in names.split(',').map(str::trim) {
            let format: FormatId = name.parse().map_err(|e| format!("{e}"))?;
            if !self.0.iter().flatten().any(|f| *f == format) {
                return Err(format!(
                    "pages do not come by {format} on their way down; choose of those of --formats"
                ));
            }
            wanted.push(format);
        }
        let of_side = |side| {
            let own = self.of(side).iter().copied();
            let own: Vec<FormatId> = own.filter(|f| wanted.contains(f)).collect();
            match own.is_empty() {
                true => Err(format!("none of them is for {}", side_name(side))),
                false => Ok(own),
            }
        };
        Ok(Self([of_side(Side::K)?, of_side(Side::V)?]))
    }

    /// Those of a side.
    pub fn of(&self, side: Side) -> &[FormatId] {
        &self.0[side as usize]
    }
}

/// Keys with a zero and a range a token: a ladder of their own.
const BY_TOKEN: [FormatId; 3] = [FormatId::Int8t, FormatId::Int4t, FormatId::Int2t];

/// The wanted levels of a side: those of keys per token, if there are any, beside 16 bit.
fn of_one_grouping(side: Side, wanted: &[FormatId]) -> impl Iterator<Item = FormatId> {
    let levels = precision_levels(side).filter(|f| wanted.contains(f));
    let by_token = side == Side::K && wanted.iter().any(|f| BY_TOKEN.contains(f));
    levels.filter(move |f| !by_token || *f == FormatId::F16 || BY_TOKEN.contains(f))
}

fn side_name(side: Side) -> &'static str {
    match side {
        Side::K => "keys",
        Side::V => "values",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FormatId as F;

    #[test]
    fn a_side_takes_what_it_can_have() {
        let paper = FormatChoices::named("int8, int4,int2").unwrap();
        assert_eq!(paper.of(Side::K), [F::F16, F::Int8, F::Int4, F::Int2]);
        assert_eq!(paper.of(Side::V), paper.of(Side::K));
        let kitty = FormatChoices::named("int4,kitty25,int2c").unwrap_err();
        assert!(kitty.contains("no page shrinks from"), "{kitty}");
        let kitty = FormatChoices::named("int4,kitty25,int2").unwrap();
        assert!(
            kitty.of(Side::K).contains(&F::Kitty25) && !kitty.of(Side::V).contains(&F::Kitty25)
        );
    }

    #[test]
    fn keys_by_token_come_down_by_their_own_formats() {
        let paper = FormatChoices::named("int8t,int4t,int2t,int8,int4,int2").unwrap();
        assert_eq!(paper.of(Side::K), [F::F16, F::Int8t, F::Int4t, F::Int2t]);
        assert_eq!(paper.of(Side::V), [F::F16, F::Int8, F::Int4, F::Int2]);
        let floors = paper.floors("int4t,int2t, int4,int2").unwrap();
        assert_eq!(floors.of(Side::K), [F::Int4t, F::Int2t]);
        assert_eq!(floors.of(Side::V), [F::Int4, F::Int2]);
        let wide = paper.floors("f16,int4").unwrap();
        assert_eq!(wide.of(Side::V), [F::F16, F::Int4]);
        assert_eq!(wide.of(Side::K), [F::F16]);
    }

    #[test]
    fn floors_that_cannot_be_are_said() {
        let paper = FormatChoices::named("int8t,int4t,int2t,int8,int4,int2").unwrap();
        for (names, word) in [
            ("int7", "int7"),
            ("int2c", "choose of those of --formats"),
            ("int4,int2", "none of them is for keys"),
        ] {
            let error = paper.floors(names).unwrap_err();
            assert!(error.contains(word), "{names}: {error}");
        }
        let keys = FormatChoices::named("int4t,int2t").unwrap_err();
        assert!(keys.contains("none of them is for values"), "{keys}");
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (names, word) in [
            ("int7", "int7"),
            ("int3", "step by step"),
            ("kitty25", "none of them is for values"),
        ] {
            let error = FormatChoices::named(names).unwrap_err();
            assert!(error.contains(word), "{names}: {error}");
        }
    }
}
