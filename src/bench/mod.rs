//! `heddle bench`: benchmarks that print both sides of a comparison in one run.

mod admission;
mod bring_up;
mod cpu;
mod judge;
mod placement;
mod plan;
mod probe;
mod process;
mod promises;
mod scratch;
mod shapes;
mod sim;
mod sm;
mod stock;
mod stream;
mod subnet_list;
mod tightness;
mod view;
mod walk;

use std::process::ExitCode;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The emulated fabric next to ibsim and to a server that does nothing, behind the same sockets.
    Sim(sim::BenchSimArgs),
    /// opensm on the emulated fabric and on ibsim, and what other tools say of the result.
    BringUp(bring_up::BenchBringUpArgs),
    /// `heddle sm` and opensm side by side: bring-up, changes, queries.
    Sm(sm::BenchSmArgs),
    /// `heddle sm` on fabrics of every shape, judged by stock tools and by a walk through the tables.
    Judge(judge::BenchJudgeArgs),
    /// How many clusters a fabric takes whose places are given, next to the paper's rule.
    Admission(admission::BenchAdmissionArgs),
    /// How full a fabric gets that takes clusters one after the other, and how long a decision takes in CPU time.
    ///
    /// Waiting for a processor does not count; a busy machine still makes decisions slower.
    Placement(placement::BenchPlacementArgs),
    /// How long it takes in CPU time to plan and prove a fabric full of clusters, and one more.
    ///
    /// Waiting for a processor does not count; a busy machine still makes it slower.
    Plan(plan::BenchPlanArgs),
    /// What guaranteed clusters get while all others attack them, with and without Heddle.
    Promises(promises::BenchPromisesArgs),
    /// How close hostile neighbours come to the latency bound.
    Tightness(tightness::BenchTightnessArgs),
    /// Shared adapters and jobs beside hostile neighbours, next to what papers report.
    Shapes(shapes::BenchShapesArgs),
    /// The networks that tenants see, next to ibsim of the same topology; idle ones, and one that is flooded.
    View(view::BenchViewArgs),
    /// Serves views of clusters. Used by `bench view`.
    #[command(hide = true)]
    Views(view::ViewsArgs),
    /// A server that answers every request with itself. Used by `bench sim`.
    #[command(hide = true)]
    Echo {
        /// Name of its sockets.
        name: String,
    },
}

pub fn run(command: BenchCommand) -> anyhow::Result<ExitCode> {
    let measured = match command {
        // What it measures is also a judgement.
        BenchCommand::Promises(args) => return promises::run(&args),
        BenchCommand::Sim(args) => sim::run(args),
        BenchCommand::BringUp(args) => bring_up::run(args),
        BenchCommand::Sm(args) => sm::run(args),
        BenchCommand::Judge(args) => judge::run(args),
        BenchCommand::Admission(args) => admission::run(args),
        BenchCommand::Placement(args) => placement::run(args),
        BenchCommand::Plan(args) => plan::run(args),
        BenchCommand::Tightness(args) => tightness::run(args),
        BenchCommand::Shapes(args) => shapes::run(args),
        BenchCommand::View(args) => view::run(&args),
        BenchCommand::Views(args) => view::serve(&args),
        BenchCommand::Echo { name } => sim::echo(&name),
    };
    measured.map(|()| ExitCode::SUCCESS)
}
