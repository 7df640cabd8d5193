//! Git LFS pointers: what lies in a clone where a large file has not been fetched.

/// Whether these are not a file's bytes, but the text that stands for them in a Git repository.
/// Format: <https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>.
pub(crate) fn is_lfs_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(b"version https://git-lfs.github.com/spec/")
}

/// What a pointer's reader is told, as the rest of a sentence about the file.
pub(crate) const LFS_ADVICE: &str = "it is a Git LFS pointer, not the file itself: run `git lfs \
                                     pull` in the repository, or download the file";
