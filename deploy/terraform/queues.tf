locals {
  # The number of concurrent deliveries of a queue. Pools and parallelism already limit what
  # runs. But when deliveries exceed the capacity of a worker's instances, Cloud Run answers
  # 429, and Cloud Tasks then slows down the whole queue.
  at_once = merge({ for queue, worker in var.workers : queue => min(1000, worker.instances * worker.concurrency) }, { timers = 1000 })
}

# One queue for each worker_queue of assets, and one for timers.
resource "google_cloud_tasks_queue" "this" {
  for_each = local.at_once

  project  = var.project
  location = var.region
  name     = "${var.prefix}-${each.key}"

  rate_limits {
    max_concurrent_dispatches = each.value
    max_dispatches_per_second = 500
  }

  # Cloud Tasks drops a task after an hour and a half of failed deliveries, and the next
  # sweep dispatches it again, with an envelope that is valid for another week. Without
  # this limit, Cloud Tasks would repeat an expired envelope for up to a month, and a
  # worker that is back after a week would refuse it each time. Timers carry nothing that
  # expires.
  retry_config {
    max_attempts       = each.key == "timers" ? -1 : 100
    max_retry_duration = each.key == "timers" ? "0s" : "3600s"
    min_backoff        = "1s"
    max_backoff        = "60s"
  }

  depends_on = [google_project_service.apis]
}

resource "google_cloud_tasks_queue_iam_member" "dispatcher" {
  for_each = {
    for pair in setproduct(keys(google_cloud_tasks_queue.this), ["enqueuer", "taskDeleter", "viewer"]) :
    "${pair[0]}/${pair[1]}" => { queue = pair[0], role = "roles/cloudtasks.${pair[1]}" }
  }

  project  = var.project
  location = var.region
  name     = google_cloud_tasks_queue.this[each.value.queue].name
  role     = each.value.role
  member   = "serviceAccount:${local.email["dispatcher"]}"
}

# Cloud Tasks calls with the service account of the queue.
resource "google_service_account_iam_member" "dispatcher_as_queue" {
  service_account_id = google_service_account.this["queue"].name
  role               = "roles/iam.serviceAccountUser"
  member             = "serviceAccount:${local.email["dispatcher"]}"
}

locals {
  # Every minute, the sweeper visits the domains whose wakeup is due. Once a day, it visits all domains.
  sweeps = {
    sweep      = { schedule = "* * * * *", query = "", retries = 0, deadline = "180s" }
    full-sweep = { schedule = var.full_sweep, query = "?full=true", retries = 3, deadline = "1800s" }
  }
}

resource "google_cloud_scheduler_job" "sweeps" {
  for_each = local.sweeps

  project          = var.project
  region           = var.region
  name             = "${var.prefix}-${each.key}"
  description      = "Finds entries and tasks whose notification was lost."
  schedule         = each.value.schedule
  attempt_deadline = each.value.deadline

  retry_config {
    retry_count = each.value.retries
  }

  http_target {
    http_method = "POST"
    uri         = "${local.url["sweeper"]}/v1/sweep${each.value.query}"

    oidc_token {
      service_account_email = local.email["scheduler"]
      audience              = local.url["sweeper"]
    }
  }

  depends_on = [google_project_service.apis]
}
