//! Lines of CSV, to standard output and to a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

/// Where a benchmark's lines go.
#[derive(Debug)]
pub struct Csv {
    prints: bool,
    file: Option<File>,
}

impl Csv {
    /// Prints the header; a file gets it if it is new or empty, and is appended to otherwise.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn new(header: &str, path: Option<&Path>) -> io::Result<Self> {
        println!("{header}");
        let file = path.map(|path| open(header, path)).transpose()?;
        Ok(Self { prints: true, file })
    }

    /// Lines that are not printed.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn file(header: &str, path: &Path) -> io::Result<Self> {
        let file = Some(open(header, path)?);
        Ok(Self {
            prints: false,
            file,
        })
    }

    /// Adds a line.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn line(&mut self, line: &str) -> io::Result<()> {
        if self.prints {
            println!("{line}");
        }
        match &mut self.file {
            Some(file) => writeln!(file, "{line}"),
            None => Ok(()),
        }
    }
}

/// A file to append to, with its header.
fn open(header: &str, path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    if file.metadata()?.len() == 0 {
        writeln!(file, "{header}")?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_header_whoever_writes_it() {
        let path = std::env::temp_dir().join(format!("ebb-csv-{}.csv", std::process::id()));
        for line in ["1,2", "3,4"] {
            let mut csv = Csv::new("a,b", Some(&path)).unwrap();
            csv.line(line).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "a,b\n1,2\n3,4\n");
    }
}
