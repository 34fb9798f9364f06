//! Where the programs under test are.

use std::path::PathBuf;

use anyhow::Context;

/// The programs of Heddle that benchmarks start. Other programs (ibsim, opensm, …) are found on `PATH`.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `heddle`, for `heddle sim` and `heddle sm`.
    pub heddle: PathBuf,
    /// `heddle-bench`, for its hidden servers.
    pub heddle_bench: PathBuf,
}

impl Programs {
    /// Finds `heddle` in the directory of the running program, unless `heddle` names another one. The running program
    /// has to be `heddle-bench`.
    pub fn find(heddle: Option<PathBuf>) -> anyhow::Result<Self> {
        let heddle_bench = std::env::current_exe().context("cannot find the path of this program")?;
        let heddle = heddle.unwrap_or_else(|| heddle_bench.with_file_name("heddle"));
        Ok(Self { heddle, heddle_bench })
    }
}
