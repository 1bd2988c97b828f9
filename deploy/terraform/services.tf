locals {
  # The callers of each service. A service authorizes callers by these roles, route by
  # route.
  callers = {
    compactor  = ["dispatcher", "sweeper", "pubsub"]
    dispatcher = ["compactor", "sweeper", "pubsub", "queue"]
    sweeper    = ["scheduler"]
  }

  # The sweeper is idle between requests and is called every minute: with a CPU between
  # requests, one instance would be billed around the clock. The other services continue to
  # work after a response: they forward notifications and write lazy events.
  between_requests = setsubtract(local.services, ["sweeper"])

  # Pub/Sub, Cloud Tasks and Cloud Scheduler count as internal callers. Calls of the other
  # services to the compactor, and of workers to the dispatcher, count as external.
  ingress = {
    compactor  = "INGRESS_TRAFFIC_ALL"
    dispatcher = "INGRESS_TRAFFIC_ALL"
    sweeper    = "INGRESS_TRAFFIC_INTERNAL_ONLY"
  }

  # The port of a service's metrics. It is reachable within the instance only.
  metrics_port = 9464

  traces = var.traces_sidecar == "" ? var.traces : "http://localhost:4318"

  # The dispatcher has both sets of keys. A caller with a worker's keys can send tasks to the worker, but cannot
  # report results.
  secrets = { keys = var.keys, worker-keys = var.worker_keys }

  # The memory for the states of domains, in bytes: half of an instance's memory.
  cache_bytes = {
    for name, service in var.services :
    name => floor(tonumber(regex("^[0-9]+", service.memory)) * (endswith(service.memory, "Gi") ? 1024 : 1) * 1024 * 1024 / 2)
  }

  environment = {
    compactor = {
      SERVO_CACHE_BYTES    = tostring(local.cache_bytes["compactor"])
      SERVO_DISPATCHER_URL = local.url["dispatcher"]
    }
    dispatcher = {
      SERVO_CACHE_BYTES     = tostring(local.cache_bytes["dispatcher"])
      SERVO_COMPACTOR_URL   = local.url["compactor"]
      SERVO_WORKER_URL      = local.worker_url["default"]
      SERVO_WORKER_URLS     = join(",", [for queue, url in local.worker_url : "${queue}=${url}" if queue != "default"])
      SERVO_URL             = local.url["dispatcher"]
      SERVO_CHANNEL_SECRETS = join(",", [for id in var.channel_secrets : "gcp:projects/${var.project}/secrets/${id}"])
      SERVO_KEYS            = "/secrets/keys/keys.json"
      SERVO_WORKER_KEYS     = "/secrets/worker-keys/keys.json"
      SERVO_QUEUE           = "projects/${var.project}/locations/${var.region}"
      SERVO_QUEUE_PREFIX    = "${var.prefix}-"
      SERVO_QUEUE_ACCOUNT   = local.email["queue"]
      SERVO_TENANT_WEIGHTS  = join(",", [for tenant, turns in var.tenant_weights : "${tenant}=${turns}"])
    }
    sweeper = {
      SERVO_COMPACTOR_URL  = local.url["compactor"]
      SERVO_DISPATCHER_URL = local.url["dispatcher"]
    }
  }
}

# The services authenticate callers themselves: Cloud Run would strip the signatures of
# tokens before it passes them on.
resource "google_cloud_run_v2_service" "services" {
  for_each = local.services

  project              = var.project
  location             = var.region
  name                 = "${var.prefix}-${each.value}"
  deletion_protection  = false # the service is stateless
  invoker_iam_disabled = true
  ingress              = local.ingress[each.value]

  template {
    service_account = local.email[each.value]
    timeout         = each.value == "sweeper" ? "1800s" : "300s" # as long as the scheduler waits for a full sweep

    scaling {
      min_instance_count = 0
      max_instance_count = var.services[each.value].instances
    }

    max_instance_request_concurrency = 200

    containers {
      name  = "service"
      image = var.images["servo-${each.value}"]

      ports {
        container_port = 8080
      }

      resources {
        limits = {
          cpu    = var.services[each.value].cpu
          memory = var.services[each.value].memory
        }

        cpu_idle = !contains(local.between_requests, each.value)
      }

      dynamic "env" {
        for_each = merge(local.environment[each.value], {
          SERVO_STORE         = "gs://${google_storage_bucket.state.name}"
          SERVO_CALLERS       = join(",", [for name in local.callers[each.value] : "${name}=${local.email[name]}"])
          SERVO_AUDIENCE      = local.url[each.value]
          SERVO_TRACES        = local.traces
          SERVO_TRACE_RATIO   = tostring(var.trace_ratio)
          SERVO_TRACE_PROJECT = var.project
          }, var.metrics_sidecar == "" || !contains(local.between_requests, each.value) ? {} : {
          SERVO_METRICS_LISTEN = "127.0.0.1:${local.metrics_port}"
        })

        content {
          name  = env.key
          value = env.value
        }
      }

      startup_probe {
        period_seconds    = 1
        failure_threshold = 60

        http_get {
          path = "/readyz"
        }
      }

      dynamic "volume_mounts" {
        for_each = each.value == "dispatcher" ? local.secrets : {}

        content {
          name       = volume_mounts.key
          mount_path = "/secrets/${volume_mounts.key}"
        }
      }
    }

    dynamic "containers" {
      # The sidecar scrapes the metrics twice a minute, which takes a CPU between requests. The
      # sweeper has no CPU then, so its metrics are computed from its log.
      for_each = var.metrics_sidecar == "" || !contains(local.between_requests, each.value) ? [] : [var.metrics_sidecar]

      content {
        name       = "metrics"
        image      = containers.value
        depends_on = ["service"]

        resources {
          cpu_idle = false
        }

        volume_mounts {
          name       = "metrics"
          mount_path = "/etc/rungmp"
        }
      }
    }

    dynamic "containers" {
      for_each = var.traces_sidecar == "" ? [] : [var.traces_sidecar]

      content {
        name  = "traces"
        image = containers.value

        resources {
          cpu_idle = !contains(local.between_requests, each.value) # billing is per instance, sidecar included
        }
      }
    }

    dynamic "volumes" {
      for_each = contains(local.between_requests, each.value) ? google_secret_manager_secret.metrics : []

      content {
        name = "metrics"

        secret {
          secret = volumes.value.secret_id

          items {
            version = "latest"
            path    = "config.yaml"
          }
        }
      }
    }

    dynamic "volumes" {
      for_each = each.value == "dispatcher" ? local.secrets : {}

      content {
        name = volumes.key

        secret {
          secret = volumes.value

          items {
            version = "latest"
            path    = "keys.json"
          }
        }
      }
    }
  }

  depends_on = [
    google_project_service.apis, google_storage_bucket_iam_member.reads, google_secret_manager_secret_iam_member.keys,
    google_secret_manager_secret_iam_member.metrics, google_secret_manager_secret_version.metrics,
  ]
}

# The sidecar's configuration. It is not secret, but Cloud Run mounts files only from secrets.
resource "google_secret_manager_secret" "metrics" {
  count = var.metrics_sidecar == "" ? 0 : 1

  project   = var.project
  secret_id = "${var.prefix}-metrics"

  replication {
    auto {}
  }

  depends_on = [google_project_service.apis]
}

resource "google_secret_manager_secret_version" "metrics" {
  count = var.metrics_sidecar == "" ? 0 : 1

  secret = google_secret_manager_secret.metrics[0].id
  secret_data = jsonencode({
    apiVersion = "monitoring.googleapis.com/v1beta"
    kind       = "RunMonitoring"
    metadata   = { name = "servo" }
    spec       = { endpoints = [{ port = local.metrics_port, path = "/metrics", interval = "30s" }] }
  })
}

resource "google_secret_manager_secret_iam_member" "metrics" {
  for_each = var.metrics_sidecar == "" ? toset([]) : local.between_requests

  project   = var.project
  secret_id = google_secret_manager_secret.metrics[0].secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${local.email[each.value]}"
}

locals {
  # DuckDB's memory for each task of a worker, in MB: half of the instance's memory. The other
  # half is for the worker, and for files in /tmp, which Cloud Run keeps in memory.
  task_memory = {
    for queue, worker in local.workers :
    queue => floor(tonumber(regex("^[0-9]+", worker.memory)) * (endswith(worker.memory, "Gi") ? 1024 : 1) / 2 / worker.concurrency)
  }
}

# Cloud Run authenticates a worker's callers. The worker then executes only envelopes that
# the dispatcher has signed.
resource "google_cloud_run_v2_service" "workers" {
  for_each = local.workers

  project             = var.project
  location            = var.region
  name                = local.worker_name[each.key]
  deletion_protection = false                           # the service is stateless
  ingress             = "INGRESS_TRAFFIC_INTERNAL_ONLY" # only Cloud Tasks calls it

  template {
    service_account                  = local.email["worker"]
    timeout                          = "1800s" # as long as Cloud Tasks waits
    max_instance_request_concurrency = each.value.concurrency

    scaling {
      min_instance_count = each.value.always_on
      max_instance_count = each.value.instances
    }

    containers {
      image = each.value.image == "" ? var.images["servo-worker"] : each.value.image
      args = [
        "worker", "--project", "/project", "--listen", ":8080", "--store", "gs://${google_storage_bucket.state.name}",
        "--keys", "/secrets/worker-keys/keys.json", "--concurrency", tostring(each.value.concurrency),
        "--memory-limit", "${local.task_memory[each.key]}MB", "--threads", each.value.cpu,
        "--traces", local.traces, "--trace-ratio", tostring(var.trace_ratio), "--trace-project", var.project,
      ]

      ports {
        container_port = 8080
      }

      resources {
        limits = {
          cpu    = each.value.cpu
          memory = each.value.memory
        }

        cpu_idle = false # a long task runs on after the response to its delivery
      }

      volume_mounts {
        name       = "worker-keys"
        mount_path = "/secrets/worker-keys"
      }
    }

    dynamic "containers" {
      for_each = var.traces_sidecar == "" ? [] : [var.traces_sidecar]

      content {
        name  = "traces"
        image = containers.value

        resources {
          cpu_idle = false
        }
      }
    }

    volumes {
      name = "worker-keys"

      secret {
        secret = var.worker_keys

        items {
          version = "latest"
          path    = "keys.json"
        }
      }
    }
  }

  depends_on = [google_project_service.apis, google_storage_bucket_iam_member.reads, google_secret_manager_secret_iam_member.keys]
}

resource "google_cloud_run_v2_service_iam_member" "queue_calls_workers" {
  for_each = google_cloud_run_v2_service.workers

  project  = var.project
  location = var.region
  name     = each.value.name
  role     = "roles/run.invoker"
  member   = "serviceAccount:${local.email["queue"]}"
}

# An earlier version had one worker under this name. It keeps running during the change.
moved {
  from = google_cloud_run_v2_service.worker
  to   = google_cloud_run_v2_service.workers["default"]
}

moved {
  from = google_cloud_run_v2_service_iam_member.queue_calls_worker
  to   = google_cloud_run_v2_service_iam_member.queue_calls_workers["default"]
}

resource "google_secret_manager_secret_iam_member" "keys" {
  for_each = {
    dispatcher        = { account = "dispatcher", secret = var.keys }
    dispatcher-worker = { account = "dispatcher", secret = var.worker_keys }
    worker            = { account = "worker", secret = var.worker_keys }
  }

  project   = var.project
  secret_id = each.value.secret
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${local.email[each.value.account]}"
}

resource "google_project_iam_member" "writes_traces" {
  for_each = var.traces_sidecar == "" ? toset([]) : setunion(local.services, ["worker"])

  project = var.project
  role    = "roles/cloudtrace.agent"
  member  = "serviceAccount:${local.email[each.value]}"
}

resource "google_project_iam_member" "writes_metrics" {
  for_each = var.metrics_sidecar == "" ? toset([]) : local.between_requests

  project = var.project
  role    = "roles/monitoring.metricWriter"
  member  = "serviceAccount:${local.email[each.value]}"
}

# The dispatcher sends alerts with these secrets.
resource "google_secret_manager_secret_iam_member" "channels" {
  for_each = toset(var.channel_secrets)

  project   = var.project
  secret_id = each.value
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${local.email["dispatcher"]}"
}
