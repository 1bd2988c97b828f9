# Metrics that count log lines.

locals {
  counted = {
    # Complete sweeps, by job: the sweeper answers 200 only if a sweep is complete.
    sweeps = join(" AND ", [
      "resource.type=\"cloud_scheduler_job\"",
      "resource.labels.job_id=(${join(" OR ", [for name in keys(local.sweeps) : "\"${var.prefix}-${name}\""])})",
      "httpRequest.status=200",
    ])
    # Sweeps that found a wakeup at least ten minutes late.
    late_sweeps = "${local.swept} AND jsonPayload.late_seconds>=600"
    # Sweeps that found ledger entries that were never announced to the compactor.
    unannounced = "${local.swept} AND jsonPayload.groups>0"
  }

  swept = "resource.type=\"cloud_run_revision\" AND resource.labels.service_name=\"${var.prefix}-sweeper\" AND jsonPayload.message=\"swept\""

  # The names that PromQL uses. Every query must name the kind of resource.
  count = {
    for name in keys(local.counted) :
    name => "logging_googleapis_com:user_${replace(var.prefix, "-", "_")}_${name}{monitored_resource=\"${name == "sweeps" ? "cloud_scheduler_job" : "cloud_run_revision"}\""
  }
}

resource "google_logging_metric" "counted" {
  for_each = local.counted

  project = var.project
  name    = "${replace(var.prefix, "-", "_")}_${each.key}"
  filter  = each.value

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "INT64"
  }

  depends_on = [google_project_service.apis]
}
