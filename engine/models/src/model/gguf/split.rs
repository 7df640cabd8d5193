//! Names of the parts of a split GGUF file: `NAME-00001-of-00003.gguf`, as llama.cpp's `gguf-split`
//! writes them.

/// The most parts accepted; real models have some dozens.
const PARTS_MAX: u32 = 1000;
/// Digits of a number in a name.
const DIGITS: usize = 5;

/// The name of a part, or the path of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitName<'a> {
    stem: &'a str,
    /// From 1.
    number: u32,
    count: u32,
    extension: &'a str,
}

impl<'a> SplitName<'a> {
    /// Reads a name; `None` for that of a file that stands alone.
    pub fn parse(name: &'a str) -> Option<Self> {
        let at = name.len().checked_sub(".gguf".len())?;
        let (rest, extension) = name.split_at_checked(at)?;
        let (rest, count) = number_after(rest, "-of-")?;
        let (stem, number) = number_after(rest, "-")?;
        let sound = extension.eq_ignore_ascii_case(".gguf")
            && (1..=PARTS_MAX).contains(&count)
            && (1..=count).contains(&number);
        sound.then_some(Self {
            stem,
            number,
            count,
            extension,
        })
    }

    /// What stands before the numbers.
    pub fn stem(&self) -> &'a str {
        self.stem
    }

    /// Number of parts.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The names of all parts, in their order.
    pub fn all(&self) -> Vec<String> {
        let (stem, count, extension) = (self.stem, self.count, self.extension);
        (1..=count)
            .map(|number| format!("{stem}-{number:05}-of-{count:05}{extension}"))
            .collect()
    }
}

/// Splits off a number of five digits and the `mark` before it.
fn number_after<'a>(text: &'a str, mark: &str) -> Option<(&'a str, u32)> {
    let (rest, digits) = text.split_at_checked(text.len().checked_sub(DIGITS)?)?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse().ok().filter(|_| is_number)?;
    Some((rest.strip_suffix(mark)?, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_told_from_others() {
        let split = SplitName::parse("Q4/x-00002-of-00003.gguf").expect("a part");
        assert_eq!((split.stem(), split.number, split.count()), ("Q4/x", 2, 3));
        let first = "Q4/x-00001-of-00003.gguf";
        assert_eq!(split.all()[0], first);
        assert_eq!(split.all().len(), 3);
        for other in [
            "x.gguf",
            ".gguf",
            "x-1-of-3.gguf",
            "x-00004-of-00003.gguf",
            "x-00000-of-00003.gguf",
            "x-00001-of-09999.gguf",
            "x-00001-of-00003.bin",
            "x-00001of00003.gguf",
            "x-+0001-of-00003.gguf",
            "é-00001-of-é.gguf",
            "",
        ] {
            assert_eq!(SplitName::parse(other), None, "{other}");
        }
    }
}
