//! Error responses to requests that a use case rejects.

use axum::http::StatusCode;
use fabric_compiler::CompileError;

use super::access::Caller;
use super::error::ApiError;
use super::limits::limit_of;
use crate::admission::AdmissionError;
use crate::clusters::{ClusterError, NotPlanned};
use crate::hosts::HostError;
use crate::planning::PlanningError;
use crate::site_partitions::SitePartitionsError;

impl Caller {
    /// The response to a request for a cluster that is rejected, with what the caller may learn of the reason.
    pub fn refuse(&self, error: ClusterError) -> ApiError {
        let limit = limit_of(&error).map(|limit| self.disclose_limit(limit));
        self.problem(error).limit(limit)
    }

    fn problem(&self, error: ClusterError) -> ApiError {
        let detail = error.to_string();
        match error {
            ClusterError::NoSuchCluster(name) => ApiError::not_found("cluster", name),
            ClusterError::NoSuchTenant(name) => ApiError::not_found("tenant", name),
            ClusterError::NameTaken(_) => ApiError::conflict("name-taken", detail).field("name"),
            ClusterError::NoSuchImage { known, .. } => {
                let names: Vec<&str> = known.iter().map(|name| name.as_str()).collect();
                let hint = if names.is_empty() {
                    "there are no images yet".to_owned()
                } else {
                    format!("images: {}", names.join(", "))
                };
                ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "no-such-image", detail).field("image").hint(hint)
            }
            ClusterError::NoInfinibandDriver(_) => {
                ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "no-infiniband-driver", detail)
                    .field("adapter")
                    .hint("use adapter ethernet, or an image that heddle image list shows with infiniband")
            }
            ClusterError::Busy { .. } => {
                ApiError::conflict("busy", detail).hint("wait until it is ready: heddle cluster show")
            }
            ClusterError::InvalidSubPartition(_) => ApiError::invalid("partitions", detail),
            ClusterError::NumbersExhausted(error) => ApiError::conflict("no-capacity", self.disclose(&error))
                .hint("delete a cluster, or wait ten minutes"),
            ClusterError::Quota(_) => ApiError::conflict("quota-exceeded", detail).hint(
                "request less or delete something; heddle tenant show lists the usage, and operators change quotas with \
                 heddle tenant quota",
            ),
            ClusterError::NotPlaced(error) => self.refuse_placement(&error),
            ClusterError::NotPlanned(error) => self.refuse_plan(&error),
            ClusterError::NoKeys(error) => {
                tracing::error!("{detail}: {error:#}");
                ApiError::internal(detail)
            }
            ClusterError::Store(error) => error.into(),
        }
    }

    fn refuse_placement(&self, error: &AdmissionError) -> ApiError {
        let detail = self.disclose(error);
        match error {
            AdmissionError::NotYet => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not-yet", detail)
                .hint("try again in a moment"),
            AdmissionError::NoHost { .. } => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no-usable-host", detail)
                    .hint("try again later; operators see details with heddle host list")
            }
            AdmissionError::NoCapacity { .. } => ApiError::conflict("no-capacity", detail).hint(
                "request fewer nodes, or less memory or cores per node; operators see what is left with heddle host list",
            ),
        }
    }

    fn refuse_plan(&self, error: &NotPlanned) -> ApiError {
        let detail = self.disclose(error);
        match &error.reason {
            PlanningError::Compile(CompileError::NotAdmitted { .. }) => {
                ApiError::conflict("cannot-guarantee", detail)
                    .field("class")
                    .hint("request less bandwidth, fewer nodes, or best effort")
            }
            PlanningError::Compile(_) | PlanningError::Unsound { .. } => {
                ApiError::conflict("cannot-be-planned", detail)
            }
            PlanningError::Panicked => ApiError::internal(detail),
        }
    }
}

/// All facts: requests that change hosts are for operators.
impl From<HostError> for ApiError {
    fn from(error: HostError) -> Self {
        let detail = error.to_string();
        match error {
            HostError::NoSuchHost(name) => Self::not_found("host", name),
            HostError::RunsNodes(_) | HostError::RunsNodesBehindPort { .. } => {
                Self::conflict("in-use", detail).hint("delete the clusters first")
            }
            HostError::PortTaken { .. } => Self::conflict("port-taken", detail).field("port_guid"),
            HostError::BoundElsewhere { .. } => Self::conflict("bound-elsewhere", detail)
                .field("port_guid")
                .hint("bind it to a new adapter with heddle host bind"),
            HostError::OfSite { .. } => Self::conflict("of-site", detail)
                .field("port_guid")
                .hint("change the partitions of the site first, with heddle fabric partitions set"),
            HostError::Store(error) => error.into(),
        }
    }
}

impl From<SitePartitionsError> for ApiError {
    fn from(error: SitePartitionsError) -> Self {
        let detail = error.to_string();
        match error {
            SitePartitionsError::Syntax(_) | SitePartitionsError::WithoutNumber { .. } => {
                Self::invalid("conf", detail)
            }
            SitePartitionsError::OfCluster { .. } | SitePartitionsError::Quarantined { .. } => {
                Self::conflict("number-taken", detail).field("conf").hint("choose another number")
            }
            SitePartitionsError::NoneForManagement => Self::conflict("number-taken", detail).field("conf"),
            SitePartitionsError::Planning(PlanningError::Panicked) => {
                tracing::error!("{detail}");
                Self::internal("no plan could be made with these partitions; see the log of the controller")
            }
            SitePartitionsError::Planning(_) => Self::conflict("not-planned", detail).field("conf"),
            SitePartitionsError::Store(error) => error.into(),
        }
    }
}
