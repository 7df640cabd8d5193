//! The deadline that a gRPC call brings along.

use std::time::Duration;

use tonic::metadata::MetadataMap;

use super::status::CallError;

/// The header `grpc-timeout`: up to eight digits and a unit (`H M S m u n`), relative to the call's
/// arrival.
///
/// # Errors
/// [`CallError::Call`] when it is not of that form.
pub(super) fn grpc_timeout(metadata: &MetadataMap) -> Result<Option<Duration>, CallError> {
    let Some(value) = metadata.get("grpc-timeout") else {
        return Ok(None);
    };
    let parsed = value.to_str().ok().and_then(parse);
    parsed.map(Some).ok_or_else(|| {
        CallError::call(
            "grpc-timeout",
            format!("{value:?} is not a timeout such as 100m (milliseconds) or 5S"),
        )
    })
}

fn parse(text: &str) -> Option<Duration> {
    let unit = text.chars().next_back()?;
    let digits = &text[..text.len() - unit.len_utf8()];
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        'H' => Duration::from_secs(count * 3600),
        'M' => Duration::from_secs(count * 60),
        'S' => Duration::from_secs(count),
        'm' => Duration::from_millis(count),
        'u' => Duration::from_micros(count),
        'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_of_the_protocol_is_read() {
        let seconds = |s: &str| parse(s).map(|d| d.as_secs_f64());
        assert_eq!(seconds("2H"), Some(7200.0));
        assert_eq!(seconds("3M"), Some(180.0));
        assert_eq!(seconds("99999999S"), Some(99_999_999.0));
        assert_eq!(seconds("250m"), Some(0.25));
        assert_eq!(seconds("5u"), Some(5e-6));
        assert_eq!(seconds("0n"), Some(0.0));
    }

    #[test]
    fn anything_else_is_refused() {
        for bad in ["", "S", "5", "-5S", "+5S", "5s", "123456789S", "5é", "1.5S"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
        let mut metadata = MetadataMap::new();
        assert_eq!(grpc_timeout(&metadata), Ok(None));
        metadata.insert("grpc-timeout", "soon".parse().unwrap());
        let error = grpc_timeout(&metadata).unwrap_err();
        assert!(error.to_string().starts_with("grpc-timeout: "), "{error}");
    }
}
