locals {
  # How many deliveries of a queue are under way at once. Pools and parallelism limit what
  # runs, and the queues need not; but where there are more than a worker's instances take,
  # Cloud Run answers 429, and for that Cloud Tasks slows the whole queue down.
  at_once = merge({ for queue, worker in var.workers : queue => min(1000, worker.instances * worker.concurrency) }, { timers = 1000 })
}

# Of tasks, one for each worker_queue of assets, and of timers.
resource "google_cloud_tasks_queue" "this" {
  for_each = local.at_once

  project  = var.project
  location = var.region
  name     = "${var.prefix}-${each.key}"

  rate_limits {
    max_concurrent_dispatches = each.value
    max_dispatches_per_second = 500
  }

  # A task that was in vain for an hour and a half is dropped, and dispatched anew by the
  # next sweep, with an envelope that is valid for another week: a worker that was away for
  # longer than that would refuse the old one for as long as Cloud Tasks repeats it, a
  # month. Timers have nothing that expires.
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

# The dispatcher has Cloud Tasks call as the account of the queue.
resource "google_service_account_iam_member" "dispatcher_as_queue" {
  service_account_id = google_service_account.this["queue"].name
  role               = "roles/iam.serviceAccountUser"
  member             = "serviceAccount:${local.email["dispatcher"]}"
}

locals {
  # Every minute the domains that are due; once a day all of them.
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
  description      = "Finds what nobody was told of."
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
